"""The variational bound over a set of pictures, in bits per dim, with its parts and its error."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.data.codec import PixelCodec
from iddpm.data.loader import Batch
from iddpm.diffusion.bound import bound_steps, prior_term
from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.runtime.seeds import Draws, Stream
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["Likelihood", "likelihood"]


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The bound of each picture, and its terms averaged over them.

    Attributes:
        total_bits_per_dim: One value a picture.
        prior_bits_per_dim: Mean over the pictures.
        terms_bits_per_dim: Means, the chain's largest index first; the last is the decoder's.
        mse: Mean squared error of eps at each step, in the same order.
    """

    total_bits_per_dim: Float[np.ndarray, "n"]
    prior_bits_per_dim: float
    terms_bits_per_dim: Float[np.ndarray, "steps"]
    mse: Float[np.ndarray, "steps"]

    @property
    def bits_per_dim(self) -> float:
        """Mean over the pictures."""
        return float(self.total_bits_per_dim.mean())

    @property
    def standard_error_bits_per_dim(self) -> float | None:
        """Standard error of that mean over pictures (the noise drawn for each included); None for a single one."""
        count = len(self.total_bits_per_dim)
        return float(self.total_bits_per_dim.std(ddof=1) / count**0.5) if count > 1 else None


@torch.inference_mode()
def likelihood(
    denoiser: Denoiser,
    batches: Iterable[Batch],
    num_images: int,
    conditioning: Callable[[Batch, Tensor], Cond],
    seed: int,
    device: torch.device,
    listener: Listener = SILENT,
) -> Likelihood:
    """Evaluate the bound on every picture of `batches` once [ND21 Eq. 4 to 7].

    The noise of a picture at a step is a function of (seed, step, the picture's place), so the batch size changes
    nothing but rounding.

    Args:
        denoiser: On the chain whose bound is wanted; its network in evaluation mode.
        batches: The pictures.
        num_images: How many there are, for the progress.
        conditioning: What the denoiser is told of a batch, whose pictures in model space it is given too.
        seed: Of the noise.
        device: Where to compute.
        listener: Told the network evaluations done, of all.
    """
    totals, priors, terms, errors, done = [], [], [], [], 0
    length = denoiser.schedule.timesteps
    for batch in batches:
        batch = batch.to(device)
        x0 = PixelCodec().encode(batch.images)
        index = torch.arange(done, done + len(batch), device=device)
        noise, steps = _step_noise(seed, index, tuple(x0.shape[1:])), []
        for step in bound_steps(denoiser, x0, conditioning(batch, x0), noise):
            steps.append(step)
            evaluations = done * length + len(batch) * len(steps)
            listener.progress("bits per dim", evaluations, num_images * length, "network evaluations")
        prior = prior_term(denoiser.schedule, x0).cpu().double()
        terms.append(torch.stack([step.term for step in steps], dim=1).cpu().double())
        errors.append(torch.stack([step.mse for step in steps], dim=1).cpu().double())
        priors.append(prior)
        totals.append(prior + terms[-1].sum(dim=1))
        done += len(batch)
    return Likelihood(
        total_bits_per_dim=torch.cat(totals).numpy(),
        prior_bits_per_dim=float(torch.cat(priors).mean()),
        terms_bits_per_dim=torch.cat(terms).mean(dim=0).numpy(),
        mse=torch.cat(errors).mean(dim=0).numpy(),
    )


def _step_noise(seed: int, index: Int[Tensor, "b"], shape: tuple[int, ...]) -> Callable[[int], Tensor]:
    return lambda step: Draws(seed, step, index).normal(Stream.BOUND, *shape)
