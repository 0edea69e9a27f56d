"""Which weights of a run are meant, and where they lie: in its checkpoint, or in the snapshots of its averages."""

import math
from dataclasses import dataclass

from torch import Tensor

from iddpm.artifacts.checkpoint import Checkpoint, check_checkpoint, list_checkpoints, load_tensors
from iddpm.artifacts.run_dir import RunDir
from iddpm.experiment.config import RunConfig
from iddpm.runtime.errors import RunError
from iddpm.runtime.telling import Listener
from iddpm.training.ema import ema_name, power_name
from iddpm.training.posthoc import GOOD_FIT, Fit, Snapshot, fit_width, nearest_width, reconstruct
from iddpm.training.settings import WIDEST

__all__ = ["find_weights"]

_POWER = "power-"


@dataclass(frozen=True)
class _Kept:
    """A power-function average on the disk."""

    checkpoint: Checkpoint
    width: float

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.checkpoint.step, self.width)


def find_weights(
    run: RunDir, config: RunConfig, checkpoint: Checkpoint, asked: str, listener: Listener
) -> tuple[str, dict[str, Tensor]]:
    """The weights that are asked for, as `open_run` takes them, and their full name.

    A width that the run tracks is in the checkpoint; another is made from the averages there and in the snapshots before.

    Raises:
        RunError: The run has no such weights, or they cannot be made well from what it keeps.
    """
    widths = config.train.ema_widths
    groups = [*map(ema_name, config.train.ema), *map(power_name, widths)]
    width = _width(asked) if widths else None
    name = groups[0] if asked == "ema" else asked if width is None else power_name(width)
    if name in (*groups, "model"):
        return name, load_tensors(checkpoint, name)
    if width is not None:
        return name, _make(run, checkpoint, widths, width, listener)
    more = (
        f"and power-W for any W above 0, at most {WIDEST}" if widths else "power-W where a run has --train.ema-widths"
    )
    raise RunError(f"{run.path} holds no {asked!r} weights", f"allowed: ema, model, {', '.join(groups)}; {more}")


def _width(asked: str) -> float | None:
    try:
        width = float(asked.removeprefix(_POWER)) if asked.startswith(_POWER) else math.nan
    except ValueError:
        return None
    return float(f"{width:g}") if 0 < width <= WIDEST else None


def _make(
    run: RunDir, checkpoint: Checkpoint, widths: tuple[float, ...], width: float, listener: Listener
) -> dict[str, Tensor]:
    if checkpoint.step == 0:
        raise RunError(
            f"{run.path}: at step 0 there is nothing to average yet", "take --weights model, or a later step"
        )
    kept = _kept(run, checkpoint, widths, listener)
    fit = fit_width([one.snapshot for one in kept], checkpoint.step, width)
    if fit.residual > GOOD_FIT:
        raise _poor(run, checkpoint, width, kept, fit)
    listener.say(
        f"{power_name(width)} is made from {len(kept)} averages; its profile over the steps is {_percent(fit)} off"
    )
    return reconstruct(fit.coefficients, lambda i: load_tensors(kept[i].checkpoint, power_name(kept[i].width)))


def _kept(run: RunDir, checkpoint: Checkpoint, widths: tuple[float, ...], listener: Listener) -> list[_Kept]:
    earlier = [snapshot for snapshot in list_checkpoints(run.averages) if snapshot.step < checkpoint.step]
    whole = []
    for number, snapshot in enumerate(earlier, 1):
        try:
            check_checkpoint(snapshot)
        except RunError as error:
            listener.say(f"warning: {error.what}; going on without that snapshot")
        else:
            whole.append(snapshot)
        listener.progress("checking snapshots", number, len(earlier))
    there = [_Kept(one, width) for one in (*whole, checkpoint) for width in widths]
    return [one for one in there if (one.checkpoint.path / f"{power_name(one.width)}.safetensors").is_file()]


def _poor(run: RunDir, checkpoint: Checkpoint, width: float, kept: list[_Kept], fit: Fit) -> RunError:
    near = power_name(nearest_width([one.snapshot for one in kept], checkpoint.step, width))
    return RunError(
        f"{run.path}: {power_name(width)} at step {checkpoint.step} cannot be made from the {len(kept)} averages kept by "
        f"then: its profile over the steps would be {_percent(fit)} off; allowed: {GOOD_FIT:.0%}",
        f"the nearest that can is {near}; more can where a run takes snapshots more often (--train.snapshot-every)",
    )


def _percent(fit: Fit) -> str:
    return f"{100 * fit.residual:.2g}%"
