"""Power-function averages of any width, made after training from snapshots of a few [KAL24 Section 3].

A power-function average is a weighted mean of the weights of all steps; its profile says with which weights. The average
of another width, or at another step, is the combination of snapshots whose profile is nearest to the one wanted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from iddpm.training.ema import power_exponent

__all__ = ["GOOD_FIT", "Fit", "Snapshot", "fit_width", "nearest_width", "reconstruct"]

GOOD_FIT = 0.05
"""Largest residual of a fit that is used: beyond it an average may be as far off as another width is."""

_FINE = 1000
"""Steps from the start that count one by one; later ones count in bins of a thousandth of their step."""
_CUT = 1e-6
"""Directions below this part of the largest singular value are left out: they would magnify rounding of the snapshots."""
_NEGLIGIBLE = 1e-9
"""Coefficients that float32 weights cannot tell from 0."""


@dataclass(frozen=True)
class Snapshot:
    """A power-function average of relative width `width`, after `step` training steps."""

    step: int
    width: float


@dataclass(frozen=True)
class Fit:
    """How to combine snapshots, and how far the profile of that is from the one wanted, relative to the latter's norm."""

    coefficients: Float64[np.ndarray, " snapshots"]
    residual: float


def fit_width(snapshots: Sequence[Snapshot], step: int, width: float) -> Fit:
    """The combination of snapshots, none of them after `step`, that is nearest to the average of `width` after `step` steps.

    Nearest in the least squares of the discrete profiles, among combinations whose coefficients sum to 1: so a constant
    shift of all weights stays what it is, and a snapshot that is the one wanted has the coefficient 1 exactly.
    """
    assert snapshots, "there is something to combine"
    assert all(snapshot.step <= step for snapshot in snapshots), "no snapshot has seen the future"
    edges = _edges([*(snapshot.step for snapshot in snapshots), step])
    profiles = np.stack([_profile(snapshot, edges) for snapshot in snapshots], axis=1)
    wanted = _profile(Snapshot(step, width), edges)
    nearest = int(np.argmin(np.linalg.norm(profiles - wanted[:, None], axis=0)))
    # The differences from one profile leave the sum free of constraints, and are small where that profile is near.
    differences, missing = profiles - profiles[:, [nearest]], wanted - profiles[:, nearest]
    coefficients = np.linalg.lstsq(differences, missing, rcond=_CUT)[0]
    coefficients[np.abs(coefficients) < _NEGLIGIBLE] = 0.0
    coefficients[nearest] = 0.0
    residual = np.linalg.norm(differences @ coefficients - missing) / np.linalg.norm(wanted)
    coefficients[nearest] = 1.0 - coefficients.sum()
    return Fit(coefficients, float(residual))


def nearest_width(snapshots: Sequence[Snapshot], step: int, width: float) -> float:
    """The width nearest to `width`, to three digits, whose fit is good, going out from the nearest one that is there."""
    good = min((s.width for s in snapshots if s.step == step), key=lambda there: abs(math.log(there / width)))
    poor = width
    while True:
        middle = float(f"{math.sqrt(good * poor):.3g}")
        if not min(good, poor) < middle < max(good, poor):
            return good
        if fit_width(snapshots, step, middle).residual <= GOOD_FIT:
            good = middle
        else:
            poor = middle


def reconstruct(
    coefficients: Float64[np.ndarray, " snapshots"], load: Callable[[int], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """The sum of coefficient times state, in float32. `load` gives the state of a snapshot; one is in memory at a time."""
    total: dict[str, Tensor] = {}
    for index in np.flatnonzero(coefficients).tolist():
        _add(total, float(coefficients[index]), load(index))
    return total


def _add(total: dict[str, Tensor], coefficient: float, state: Mapping[str, Tensor]) -> None:
    for name, tensor in state.items():
        if name not in total:
            total[name] = torch.zeros_like(tensor, dtype=torch.float32)
        total[name].add_(tensor, alpha=coefficient)


def _edges(steps: Sequence[int]) -> Int64[np.ndarray, " edges"]:
    last = max(steps)
    bins = max(math.ceil(_FINE * math.log(last / _FINE)), 1) if last > _FINE else 1
    later = np.geomspace(min(_FINE, last), last, bins + 1).round().astype(np.int64)
    return np.unique(np.concatenate([np.arange(min(_FINE, last) + 1), later, np.asarray(steps)]))


def _profile(average: Snapshot, edges: Int64[np.ndarray, " edges"]) -> Float64[np.ndarray, " bins"]:
    """What the steps of each bin weigh, as the average spreads it evenly in the bin; its norm is that over single steps."""
    before = np.minimum(edges / average.step, 1.0) ** (power_exponent(average.width) + 1)
    return np.diff(before) / np.sqrt(np.diff(edges))
