"""`iddpm likelihood`: bits per dim of pictures under a run, into RUN/evaluations/<key>.json."""

import json
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from iddpm.commands.draw import spacing_key
from iddpm.commands.opening import open_together
from iddpm.commands.store import store_for
from iddpm.data.store import Store, is_store
from iddpm.diffusion.spacing import EvenSteps, StepsSpec, kept
from iddpm.evaluation.likelihood import Likelihood
from iddpm.evaluation.likelihood import likelihood as evaluate
from iddpm.evaluation.pictures import InOrder
from iddpm.experiment.conditioning import conditioning
from iddpm.experiment.open_run import OpenRun
from iddpm.runtime.errors import ConfigError, DataError
from iddpm.runtime.files import check_writable, write_json
from iddpm.runtime.machine import describe_device
from iddpm.runtime.precision import Precision
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World, open_world

__all__ = ["LikelihoodRequest", "likelihood"]


@dataclass(frozen=True, kw_only=True)
class LikelihoodRequest:
    """Which bound, of what. `steps` None is the whole chain; `data` None is the store that the run was trained on."""

    data: str | None = None
    split: Literal["held_out", "train", "all"] = "held_out"
    num: int | None = None
    steps: StepsSpec | None = None
    seed: int = 0
    weights: str = "ema"
    step: int | None = None
    batch_size: int = 32
    precision: Precision = "float32"
    device: str | None = None

    def __post_init__(self) -> None:
        if (self.num is not None and self.num < 1) or self.batch_size < 1:
            raise ConfigError(
                f"--num {self.num}, --batch-size {self.batch_size}: allowed are 1 or more",
                "ask for at least one",
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed {self.seed}: allowed are 0 to 2^63 - 1", "take another seed")


def likelihood(path: Path, request: LikelihoodRequest, listener: Listener = SILENT) -> dict[str, Any]:
    """Evaluate the bound and save it; what is there already is not computed again. All processes have a part in it.

    Raises:
        InputError: The run, the data or the steps cannot be used.
    """
    world = open_world(request.device)
    with world.patient("start"):
        opened = open_together(
            world, path, listener, weights=request.weights, step=request.step, precision=request.precision
        )
        store = world.channel.in_turn(lambda: _store(opened, request, listener))
        pictures, keep, file = world.channel.together(lambda: _plan(opened, request, store))
        there = world.channel.first(lambda: _there(file, listener))
    if there is not None:
        return there
    chain, of_split = opened.denoiser.schedule.timesteps, len(store.indices(request.split))
    num = len(pictures.pictures)
    listener.say(f"{opened.run.path.name}: {opened.settings}")
    listener.say(
        f"bits per dim of {num} {request.split.replace('_', '-')} pictures of {of_split}, "
        f"{len(keep)} of {chain} steps ({num * len(keep)} network evaluations)"
    )
    began = time.perf_counter()
    result = evaluate(
        opened.denoiser.respace(keep),
        pictures,
        num,
        partial(conditioning, opened.config.data),
        request.seed,
        world,
        listener,
    )
    facts = _facts(opened, request, store, keep, result, world, time.perf_counter() - began)
    world.channel.first(lambda: write_json(file, facts))
    return {**facts, "path": str(file)}


def _plan(opened: OpenRun, request: LikelihoodRequest, store: Store) -> tuple[InOrder, tuple[int, ...], Path]:
    """The pictures, the indices of the chain, and the file of the result."""
    chain = opened.denoiser.schedule.timesteps
    keep = kept(request.steps or EvenSteps(chain), chain)
    pictures = InOrder(store, request.split, request.batch_size, request.num, opened.config.data.size)
    key = _key(opened, request, store, len(pictures.pictures), len(keep))
    return pictures, keep, opened.run.evaluation(key)


def _there(file: Path, listener: Listener) -> dict[str, Any] | None:
    """What a file says that is there already."""
    if not file.is_file():
        check_writable(file.parent)
        return None
    listener.say(f"{file} is there already; nothing to do")
    return {**json.loads(file.read_text(encoding="utf-8")), "path": str(file), "already_there": True}


def _store(opened: OpenRun, request: LikelihoodRequest, listener: Listener) -> Store:
    data = opened.config.data
    source = request.data or opened.run.store
    if request.data is None and not Path(source).is_dir():
        raise DataError(
            f"the run's store {source} is gone",
            f"prepare it again, or give it with --data (it was made from {data.source})",
        )
    labels = "auto" if is_store(source) else data.labels
    store, _ = store_for(replace(data, source=source, labels=labels), listener)
    if request.data is None and store.content_hash != data.content_hash:
        raise DataError(f"{source} holds other pictures than the run was trained on", "give data with --data")
    if data.classes is not None and (store.labels is None or tuple(store.classes) != data.class_names):
        raise DataError(
            f"{source} has classes {list(store.classes)[:6]}, the run was trained with {list(data.class_names)[:6]}",
            "give data with the run's own classes",
        )
    return store


def _key(opened: OpenRun, request: LikelihoodRequest, store: Store, num: int, steps: int) -> str:
    spacing = f"-{spacing_key(request.steps)}" if request.steps else ""
    trained_on = store.content_hash == opened.config.data.content_hash
    other = "" if trained_on else f"-data{store.content_hash[:8]}"
    return f"likelihood-{request.split}-n{num}-steps{steps}{spacing}-seed{request.seed}-{opened.stamp}{other}"


def _facts(
    opened: OpenRun,
    request: LikelihoodRequest,
    store: Store,
    keep: tuple[int, ...],
    result: Likelihood,
    world: World,
    seconds: float,
) -> dict[str, Any]:
    error = result.standard_error_bits_per_dim
    return {
        "kind": "likelihood",
        "bits_per_dim": result.bits_per_dim,
        "standard_error_bits_per_dim": error,
        "prior_bits_per_dim": result.prior_bits_per_dim,
        "decoder_bits_per_dim": float(result.terms_bits_per_dim[-1]),
        "terms_bits_per_dim": result.terms_bits_per_dim.tolist(),
        "mse_by_step": result.mse.tolist(),
        "timesteps": list(reversed(keep)),
        "num_images": len(result.total_bits_per_dim),
        "num_steps": len(keep),
        "chain_steps": opened.denoiser.schedule.timesteps,
        "split": request.split.replace("_", "-"),
        "data": str(store.path),
        "content_hash": store.content_hash,
        "clip_x0": True,
        "decoder": "discretized Gaussian over 256 levels",
        "noise_draws": 1,
        "seed": request.seed,
        "weights": opened.weights,
        "precision": opened.precision,
        "device": describe_device(opened.device),
        "processes": world.size,
        "train_step": opened.step,
        "settings": opened.settings,
        "seconds": round(seconds, 3),
    }
