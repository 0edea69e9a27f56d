"""Sums kept on the device between two journal entries."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iddpm.diffusion.objective import Terms
from iddpm.training.step import StepResult

__all__ = ["Meter"]

_QUARTILES = 4


class Meter:
    """Means since the last reading, over the steps that were taken. Nothing is read from the device until `read`."""

    def __init__(self, timesteps: int | None):
        self._timesteps = timesteps
        self._reset()

    def _reset(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None  # a row a name, then the weights and the examples; a column a quartile of t
        self._steps: Tensor | None = None  # taken, skipped, gradient norm, and the two parts of the noise scale
        self.steps = 0

    @torch.no_grad()
    def add(self, step: StepResult) -> None:
        """Take in one step."""
        self.steps += 1
        taken = step.skipped == 0
        for micro in step.terms:
            values = {"loss": micro.loss.detach(), **micro.parts}
            self._names = tuple(values)
            sums = torch.where(taken, self._by_quartile(micro, torch.stack(list(values.values()))), 0)
            self._sums = sums if self._sums is None else self._sums.add_(sums)
        numbers = torch.stack([taken.float(), step.skipped, step.grad_norm.float(), *_noise_and_signal(step)])
        numbers = torch.where(taken | (torch.arange(len(numbers), device=numbers.device) == 1), numbers, 0)
        self._steps = numbers if self._steps is None else self._steps.add_(numbers)

    def _by_quartile(self, terms: Terms, values: Float[Tensor, "names b"]) -> Float[Tensor, "rows 4"]:
        one = torch.ones_like(values[0])
        rows = torch.cat([terms.weighted(values), terms.weighted(one)[None], one[None]])
        if rows.device.type != "mps":
            rows = rows.double()
        if terms.t is None or self._timesteps is None:
            quartile = torch.zeros(len(one), dtype=torch.int64, device=rows.device)
        else:
            quartile = terms.t * _QUARTILES // self._timesteps
        return torch.zeros(len(rows), _QUARTILES, dtype=rows.dtype, device=rows.device).index_add_(1, quartile, rows)

    def read(self) -> dict[str, Any]:
        """Means over the examples (losses) and the steps (gradient norm) since the last reading; starts anew.

        All are weighted where t was drawn by importance, so that they mean the same in every run. "..._by_quartile" has
        None where no t fell. Without a step that was taken there are no means. "gradient_noise_scale" is there where it is
        measured; None where noise hides it.
        """
        assert self._sums is not None, "there is a step to read"
        assert self._steps is not None, "there is a step to read"
        taken, skipped, norm, noise, signal = self._steps.tolist()
        *sums, weights, examples = self._sums.tolist()
        names, measured = self._names, self._timesteps is not None
        self._reset()
        reading: dict[str, Any] = {"skipped": int(skipped)} if skipped else {}
        if not taken:
            return reading
        means = {name: sum(row) / sum(examples) for name, row in zip(names, sums, strict=True)}
        reading |= {"loss": means.pop("loss"), "parts": means, "grad_norm": norm / taken}
        if measured:
            for name, row in zip(names, sums, strict=True):
                by_quartile = [total / weight if weight else None for total, weight in zip(row, weights, strict=True)]
                reading[f"{name}_by_quartile"] = by_quartile
        if noise or signal:
            reading["gradient_noise_scale"] = noise / signal if noise > 0 and signal > 0 else None
        return reading


def _noise_and_signal(step: StepResult) -> tuple[Tensor, Tensor]:
    """Estimates without bias of the gradient's variance an image, and of its squared length [MKAT18 App. A.1].

    They come from the squared lengths of the gradient of the whole batch and of its first micro-batch.
    """
    if step.first_norm is None:
        return torch.zeros_like(step.grad_norm), torch.zeros_like(step.grad_norm)
    few, all_of_it = step.first_size, sum(len(micro.loss) for micro in step.terms)
    small, big = step.first_norm.square(), step.grad_norm.square()
    noise = (small - big) / (1 / few - 1 / all_of_it)
    return noise, (all_of_it * big - few * small) / (all_of_it - few)
