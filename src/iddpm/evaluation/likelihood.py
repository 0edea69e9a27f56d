"""The variational bound over a set of pictures, in bits per dim, with its parts and its error."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.data.codec import PixelCodec
from iddpm.data.loader import Batch
from iddpm.diffusion.bound import Bound, bound_steps, prior_term
from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.evaluation.pictures import NumberedBatches
from iddpm.runtime.seeds import Draws, Stream
from iddpm.runtime.sharing import Tally, share
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World

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


def likelihood(
    denoiser: Denoiser,
    batches: NumberedBatches,
    num_images: int,
    conditioning: Callable[[Batch, Tensor], Cond],
    seed: int,
    world: World,
    listener: Listener = SILENT,
) -> Likelihood:
    """Evaluate the bound on every picture of `batches` once, over all processes [ND21 Eq. 4 to 7].

    The noise of a picture at a step is a function of (seed, step, the picture's place), so the batch size changes
    nothing but rounding. Sums are taken by batch, then over the batches in order, so the number of processes
    changes nothing at all.

    Args:
        denoiser: On the chain whose bound is wanted; its network in evaluation mode.
        batches: The pictures; each batch is asked for in the one process that measures it.
        num_images: How many there are.
        conditioning: What the denoiser is told of a batch, whose pictures in model space it is given too.
        seed: Of the noise.
        world: Where to compute.
        listener: Told the network evaluations done, of all.

    Returns:
        The same in all processes.
    """
    length = denoiser.schedule.timesteps
    totals = torch.zeros(num_images, dtype=torch.float64)
    priors = torch.zeros(len(batches), 1, dtype=torch.float64)
    terms, errors = (torch.zeros(len(batches), length, dtype=torch.float64) for _ in range(2))
    tally = Tally(world, listener, "bits per dim", num_images * length, detail="network evaluations")

    def measure(number: int) -> None:
        place, bound = _measure(denoiser, batches[number], conditioning, seed, world.device, tally)
        totals[place] = bound.total
        priors[number], terms[number], errors[number] = bound.prior.sum(), bound.terms.sum(dim=0), bound.mse.sum(dim=0)

    share(world, range(len(batches)), measure)
    tally.finish()
    # Every row is zero in all processes but one.
    prior, by_step, mse = (world.sum(rows).numpy().sum(axis=0) / num_images for rows in (priors, terms, errors))
    return Likelihood(
        total_bits_per_dim=world.sum(totals).numpy(),
        prior_bits_per_dim=float(prior[0]),
        terms_bits_per_dim=by_step,
        mse=mse,
    )


@torch.inference_mode()
def _measure(
    denoiser: Denoiser,
    batch: Batch,
    conditioning: Callable[[Batch, Tensor], Cond],
    seed: int,
    device: torch.device,
    tally: Tally,
) -> tuple[Int[Tensor, "b"], Bound]:
    """The places of a batch, and its bound in float64."""
    place, batch = batch.place, batch.to(device)
    x0 = PixelCodec().encode(batch.images)
    noise, steps = _step_noise(seed, batch.place, tuple(x0.shape[1:])), []
    for step in bound_steps(denoiser, x0, conditioning(batch, x0), noise):
        steps.append(step)
        tally.add(len(batch))
    prior = prior_term(denoiser.schedule, x0).cpu().double()
    terms = torch.stack([step.term for step in steps], dim=1).cpu().double()
    mse = torch.stack([step.mse for step in steps], dim=1).cpu().double()
    return place, Bound(prior=prior, terms=terms, mse=mse)


def _step_noise(seed: int, index: Int[Tensor, "b"], shape: tuple[int, ...]) -> Callable[[int], Tensor]:
    return lambda step: Draws(seed, step, index).normal(Stream.BOUND, *shape)
