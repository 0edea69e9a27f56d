"""`iddpm sample`: pictures from a run, into RUN/samples/<key>."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from iddpm.artifacts.run_dir import RunDir
from iddpm.commands.draw import SampleRequest, Samples, draw_samples, sample_key, save_samples, steps_of
from iddpm.diffusion.spacing import kept
from iddpm.experiment.open_run import OpenRun, open_run
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.files import check_writable
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import open_world

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
    device = open_world(request.device).device
    opened = _open(path, request, device, listener)
    key = sample_key(opened, request)
    if up is None:
        _refuse_lone_upsampler(opened)
        return _once(opened.run, key, listener, lambda: draw_samples(opened, request, listener=listener))
    up_request = up_request or request
    upper = _open(up, up_request, device, listener)
    _check_cascade(opened, upper)
    whole_key = f"{key}-of-{opened.run.path.name[:40]}-{_identity(opened)}-by-{sample_key(upper, up_request)}"

    def cascade() -> Samples:
        base = draw_samples(opened, request, listener=listener)
        low_res = torch.from_numpy(base.images).permute(0, 3, 1, 2)
        return draw_samples(upper, up_request, low_res=low_res, stage=1, listener=listener)

    return _once(upper.run, whole_key, listener, cascade)


def _open(path: Path, request: SampleRequest, device: torch.device, listener: Listener) -> OpenRun:
    opened = open_run(
        path,
        device=device,
        weights=request.weights,
        step=request.step,
        precision=request.precision,
        listener=listener,
    )
    steps = steps_of(opened, request)
    keep = kept(steps, opened.denoiser.schedule.timesteps)
    listener.say(f"{opened.run.path.name}: {opened.settings}")
    listener.say(
        f"steps {steps}: visits {len(keep)} of {opened.denoiser.schedule.timesteps} indices, from {keep[-1]} to {keep[0]}"
    )
    return opened


def _once(run: RunDir, key: str, listener: Listener, draw: Callable[[], Samples]) -> dict[str, Any]:
    folder = run.samples(key)
    if (folder / "samples.json").is_file():
        listener.say(f"{folder} is there already; nothing to do")
        facts = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
        return {**facts, "path": str(folder), "grid": str(folder / "grid.png"), "already_there": True}
    check_writable(folder.parent)
    return save_samples(folder, draw())


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
