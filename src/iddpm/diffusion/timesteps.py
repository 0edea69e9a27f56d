"""Which index each example is noised to, and what its loss then weighs.

A spec's `build` makes a sampler: `draw` turns uniform numbers into indices and weights, `update` tells it the
losses. Nothing waits for the device: the state lives there and every step is tensor arithmetic.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from iddpm.runtime.errors import ConfigError, RunError

__all__ = [
    "SecondMoment",
    "SecondMomentSampler",
    "TimestepSampler",
    "TimestepSampling",
    "Uniform",
    "UniformSampler",
]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Every index equally often."""

    def build(self, timesteps: int, device: torch.device | str = "cpu") -> "UniformSampler":
        """A sampler for a chain of this length."""
        del device
        return UniformSampler(timesteps)


@dataclass(frozen=True, kw_only=True)
class SecondMoment:
    """Each index in proportion to the root mean square of its last losses, for L_vlb's sake [ND21 Eq. 18].

    Attributes:
        history: Losses kept for each index; sampling is uniform until every index has that many.
        uniform_part: Share of the probability spread evenly, so that no index is forgotten.
    """

    history: int = 10
    uniform_part: float = 0.001

    def __post_init__(self):
        if self.history < 1:
            raise ConfigError(f"history={self.history}: at least one loss is kept", "the paper uses 10")
        if not 0 < self.uniform_part <= 1:
            raise ConfigError(
                f"uniform_part={self.uniform_part}: a share above 0, at most 1",
                "the published code uses 0.001",
            )

    def build(self, timesteps: int, device: torch.device | str = "cpu") -> "SecondMomentSampler":
        """A sampler for a chain of this length, its state on `device`."""
        return SecondMomentSampler(self, timesteps, torch.device(device))


TimestepSampling = Uniform | SecondMoment


@dataclass(frozen=True)
class UniformSampler:
    """Draws every index of a chain equally often; it keeps no state."""

    timesteps: int

    def draw(self, u: Float64[Tensor, "b"]) -> tuple[Int[Tensor, "b"], Float[Tensor, "b"]]:
        """Indices from numbers uniform in (0, 1), each of weight 1."""
        t = (u * self.timesteps).long().clamp(max=self.timesteps - 1)
        return t, torch.ones_like(u, dtype=torch.float32)

    def update(self, t: Int[Tensor, "b"], losses: Float[Tensor, "b"]) -> None:
        """Nothing to learn from the losses."""

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


@dataclass(eq=False)
class SecondMomentSampler:
    """Draws indices by the second moment of their recent losses.

    Each index has a ring of its last losses. One row more, never read, takes the writes that are to be
    dropped, so that dropping needs no look at the device.
    """

    spec: SecondMoment
    timesteps: int
    device: torch.device
    _losses: Float64[Tensor, "rows history"] = field(init=False, repr=False)
    _counts: Int[Tensor, "rows"] = field(init=False, repr=False)

    def __post_init__(self):
        rows = self.timesteps + 1
        self._losses = torch.zeros(rows, self.spec.history, dtype=torch.float64, device=self.device)
        self._counts = torch.zeros(rows, dtype=torch.int64, device=self.device)

    def probabilities(self) -> Float64[Tensor, "T"]:
        """How often each index is drawn."""
        root = self._losses[:-1].square().mean(1).sqrt()
        uniform = torch.full_like(root, 1 / self.timesteps)
        share = self.spec.uniform_part
        sought = (1 - share) * root / root.sum() + share * uniform
        warm = (self._counts[:-1] >= self.spec.history).all() & (root.sum() > 0)
        return torch.where(warm, sought, uniform)

    def draw(self, u: Float64[Tensor, "b"]) -> tuple[Int[Tensor, "b"], Float[Tensor, "b"]]:
        """Indices from numbers uniform in (0, 1); weights 1 / (T p_t) keep the mean loss unbiased."""
        p = self.probabilities()
        cumulative = p.cumsum(0)
        t = torch.searchsorted(cumulative, u * cumulative[-1], right=True).clamp(max=self.timesteps - 1)
        return t, (1 / (self.timesteps * p[t])).float()

    def update(self, t: Int[Tensor, "b"], losses: Float[Tensor, "b"]) -> None:
        """Record the unweighted losses of all processes, in this order, but for those not finite."""
        losses = losses.detach().double()
        t = torch.where(losses.isfinite(), t, self.timesteps)
        same = t[:, None] == t[None, :]
        earlier, all_of_it = same.tril(-1).sum(1), same.sum(1)
        outlived = all_of_it - earlier > self.spec.history
        slot = (self._counts[t] + earlier) % self.spec.history
        self._losses[torch.where(outlived, self.timesteps, t), slot] = losses
        self._counts.index_add_(0, t, torch.ones_like(t))

    def state_dict(self) -> dict[str, Tensor]:
        """The recorded losses and how many there were, one row for each index."""
        return {"losses": self._losses[:-1].clone(), "counts": self._counts[:-1].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, given as tensors or as nested lists.

        Raises:
            RunError: The state is of a chain of another length, or of another history.
        """
        losses = torch.as_tensor(state["losses"], dtype=torch.float64, device=self.device)
        if losses.shape != self._losses[:-1].shape:
            raise RunError(
                f"timestep sampler: state of {tuple(losses.shape)}, not {tuple(self._losses[:-1].shape)}",
                "resume with the timesteps and the history that the run was started with",
            )
        self._losses[:-1] = losses
        self._counts[:-1] = torch.as_tensor(state["counts"], device=self.device)


TimestepSampler = UniformSampler | SecondMomentSampler
