"""`iddpm sample`: pictures from a run, into RUN/samples/<key>."""

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from iddpm.commands.draw import Drawing, SampleRequest, Samples, drawing, sample_key, save_samples, steps_of
from iddpm.commands.opening import open_together
from iddpm.experiment.open_run import OpenRun
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.files import check_writable, locked
from iddpm.runtime.sharing import together
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World, open_world
from iddpm.sampling.generate import draw_batches
from iddpm.sampling.parts import Parts

__all__ = ["sample"]


def sample(
    path: Path,
    request: SampleRequest,
    up: Path | None = None,
    listener: Listener = SILENT,
    *,
    up_request: SampleRequest | None = None,
) -> dict[str, Any]:
    """Draw samples from a run and save them; what is there already is not drawn again.

    All processes draw; each batch is kept as soon as it is done, so that the same command goes on where one before it
    was killed, be it over other processes. The pictures are the same to the bit for any number of them.

    Args:
        path: The run directory.
        request: What to draw.
        up: The run directory of an upsampler that enlarges the pictures (the result lies in it).
        listener: Told the progress.
        up_request: How the upsampler draws; None: as `request` says.

    Returns:
        What `samples.json` holds, with the folder's path.

    Raises:
        InputError: The run, the steps, the label or the guidance cannot be used.
    """
    world = open_world(request.device)
    up_request = up_request or request
    with world.patient("start"):
        opened = open_together(world, path, listener, **_which(request))
        upper = None if up is None else open_together(world, up, listener, **_which(up_request))
        folder, drawings = world.channel.together(lambda: _plan(opened, request, upper, up_request))
    for one in drawings:
        _tell(one, listener)
    return _once(folder, drawings, world, listener)


def _which(request: SampleRequest) -> dict[str, Any]:
    return {"weights": request.weights, "step": request.step, "precision": request.precision}


def _plan(
    opened: OpenRun, request: SampleRequest, upper: OpenRun | None, up_request: SampleRequest
) -> tuple[Path, Sequence[Drawing]]:
    """Where the pictures will lie, and the stages they are drawn in."""
    key, base = sample_key(opened, request), drawing(opened, request)
    if upper is None:
        _refuse_lone_upsampler(opened)
        return opened.run.samples(key), (base,)
    _check_cascade(opened, upper)
    whole_key = f"{key}-of-{opened.run.path.name[:40]}-{_identity(opened)}-by-{sample_key(upper, up_request)}"
    return upper.run.samples(whole_key), (base, drawing(upper, up_request, stage=1))


def _tell(one: Drawing, listener: Listener) -> None:
    opened, keep, chain = one.opened, one.keep, one.opened.denoiser.schedule.timesteps
    listener.say(f"{opened.run.path.name}: {opened.settings}")
    steps = steps_of(opened, one.request)
    listener.say(f"steps {steps}: visits {len(keep)} of {chain} indices, from {keep[-1]} to {keep[0]}")


def _once(folder: Path, drawings: Sequence[Drawing], world: World, listener: Listener) -> dict[str, Any]:
    with contextlib.ExitStack() as lock:
        with world.patient("start"):
            there = world.channel.first(lambda: _there(folder, listener) or _begin(lock, folder, listener))
        return there or _draw(folder, drawings, world, listener)


def _there(folder: Path, listener: Listener) -> dict[str, Any] | None:
    """What is said of pictures that are there already."""
    if not (folder / "samples.json").is_file():
        return None
    listener.say(f"{folder} is there already; nothing to do")
    facts = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return {**facts, "path": str(folder), "grid": str(folder / "grid.png"), "already_there": True}


def _begin(lock: contextlib.ExitStack, folder: Path, listener: Listener) -> dict[str, Any] | None:
    """Keep the same command, given elsewhere at the same time, from drawing the same; it may have been quicker."""
    check_writable(folder.parent)
    lock.enter_context(
        locked(
            folder.with_name(f".{folder.name}.lock"),
            lambda: listener.say(f"another process is drawing {folder.name}; waiting for it"),
        )
    )
    return _there(folder, listener)


def _draw(folder: Path, drawings: Sequence[Drawing], world: World, listener: Listener) -> dict[str, Any]:
    """Draw what is not there yet, stage by stage, each picture of a stage being kept before the next one begins."""
    with world.patient("start"):
        parts = Parts(folder, world.channel.first(lambda: _stamp(drawings)))
        world.channel.first(parts.open)
    began, drawn, low_res = time.perf_counter(), 0, None
    for stage, one in enumerate(drawings):
        order = replace(one.order, low_res=low_res)
        missing = world.channel.first(partial(parts.missing, stage, order))
        if len(missing) < order.batches:
            listener.say(f"{order.batches - len(missing)} of {order.batches} batches were drawn before")
        keep = partial(parts.write, stage)
        draw_batches(one.denoiser, one.request.sampler, order, missing, world, keep, listener)
        drawn = sum(len(range(order.num)[order.rows(number)]) for number in missing)
        if one is not drawings[-1]:
            small = together(world, partial(parts.read, stage, order))
            low_res = torch.from_numpy(small).permute(0, 3, 1, 2)

    def finish() -> dict[str, Any]:
        last = drawings[-1]
        images = parts.read(len(drawings) - 1, last.order)
        facts = last.facts(world, time.perf_counter() - began, drawn)
        told = save_samples(folder, Samples(images=images, labels=last.labels, facts=facts))
        parts.remove()
        return told

    with world.patient("saving"):
        return world.channel.first(finish)


def _stamp(drawings: Sequence[Drawing]) -> str:
    identities = json.dumps([one.identity() for one in drawings], sort_keys=True)
    return hashlib.sha256(identities.encode()).hexdigest()[:12]


def _identity(opened: OpenRun) -> str:
    """Tells one run from another, wherever their directories lie."""
    return hashlib.sha256(json.dumps(opened.run.config, sort_keys=True).encode()).hexdigest()[:8]


def _refuse_lone_upsampler(opened: OpenRun) -> None:
    if opened.config.data.low_res:
        raise ConfigError(
            f"{opened.run.path} is an upsampler: it enlarges pictures of {opened.config.data.low_res} pixels",
            f"give the run that makes them first: iddpm sample RUN {opened.run.path}",
        )


def _check_cascade(opened: OpenRun, upper: OpenRun) -> None:
    base, big = opened.config.data, upper.config.data
    same_classes = big.classes is None or (big.classes, big.class_names) == (base.classes, base.class_names)
    if big.low_res != base.size or big.channels != base.channels or not same_classes:
        raise ConfigError(
            f"{upper.run.path} enlarges {big.channels}-channel pictures of {big.low_res} pixels ({big.classes} classes), "
            f"{opened.run.path} makes {base.channels}-channel ones of {base.size} ({base.classes} classes)",
            "give a pair of runs that fit",
        )
