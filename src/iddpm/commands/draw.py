"""Samples from an open run: what is asked, the pictures in memory, and their folder on the disk."""

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image

from iddpm.diffusion.denoiser import Denoiser, Guided
from iddpm.diffusion.samplers import Ddim, Sampler
from iddpm.diffusion.spacing import EvenSteps, ListedSteps, StepsSpec, kept
from iddpm.experiment.build import InPrecision
from iddpm.experiment.conditioning import null_label, sample_labels
from iddpm.experiment.open_run import OpenRun
from iddpm.report.pictures import contact_sheet, grid
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.files import new_folder, to_json
from iddpm.runtime.machine import describe_device
from iddpm.runtime.precision import Precision
from iddpm.runtime.seeds import Stream, derived_seed
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World
from iddpm.sampling.generate import Order, default_batch_size, generate

__all__ = [
    "Drawing",
    "SampleRequest",
    "Samples",
    "draw_samples",
    "drawing",
    "sample_key",
    "save_samples",
    "spacing_key",
    "steps_of",
]

_DEFAULT_STEPS = 100
_SHEET_SIDE = 96
_SHEET_MOST = 100


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """What to draw. Picture i depends on (seed, i) and on the run alone.

    `steps` None is 100 steps, or the whole chain where it is shorter.
    """

    num: int
    steps: StepsSpec | None = None
    sampler: Sampler
    seed: int = 0
    label: str | None = None
    guidance: float = 1.0
    weights: str = "ema"
    step: int | None = None
    batch_size: int | None = None
    precision: Precision | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ConfigError(f"--num {self.num}: allowed are 1 or more pictures", "ask for at least one")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed {self.seed}: allowed are 0 to 2^63 - 1", "take another seed")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"--batch-size {self.batch_size}: allowed is 1 or more", "leave it out")
        if not math.isfinite(self.guidance):
            raise ConfigError(f"--guidance {self.guidance}: allowed is a finite number", "1 is none; try 1.5 to 4")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Pictures and what made them."""

    images: UInt8[np.ndarray, "n h w c"]
    labels: Int[np.ndarray, "n"] | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A request on an open run, checked, and ready to be drawn batch by batch.

    Attributes:
        keep: The indices of the chain that are visited.
    """

    opened: OpenRun
    request: SampleRequest
    keep: tuple[int, ...]
    denoiser: Denoiser
    order: Order

    @property
    def labels(self) -> Int[np.ndarray, "n"] | None:
        """The label of each picture."""
        return None if self.order.labels is None else self.order.labels.numpy()

    def facts(self, world: World, seconds: float, drawn: int) -> dict[str, Any]:
        """What is said of the pictures, `drawn` of which this call has drawn, in so many seconds of the clock."""
        opened, request = self.opened, self.request
        return {
            "kind": "samples",
            "num": request.num,
            "sampler": type(request.sampler).__name__.lower(),
            "eta": request.sampler.eta if isinstance(request.sampler, Ddim) else None,
            "steps": len(self.keep),
            "spacing": str(steps_of(opened, request)),
            "timesteps": list(self.keep),
            "seed": request.seed,
            "guidance": request.guidance,
            "label": request.label,
            "class_names": list(opened.config.data.class_names),
            "weights": opened.weights,
            "train_step": opened.step,
            "batch_size": self.order.batch_size,
            "precision": opened.precision,
            "device": describe_device(opened.device),
            "processes": world.size,
            "settings": opened.settings,
            "seconds": round(seconds, 4),
            "seconds_per_image": round(seconds / drawn, 6) if drawn else None,
        }

    def identity(self) -> dict[str, Any]:
        """All that decides the pictures to the bit, but for the machine."""
        opened, request = self.opened, self.request
        return {
            "config": opened.run.config,
            "weights": _digest(opened),
            "sampler": repr(request.sampler),
            "keep": self.keep,
            "num": request.num,
            "seed": self.order.seed,
            "batch_size": self.order.batch_size,
            "label": request.label,
            "guidance": request.guidance,
            "precision": opened.precision,
            "device": opened.device.type,
        }


def drawing(opened: OpenRun, request: SampleRequest, stage: int = 0) -> Drawing:
    """Get ready to draw from an open run. Each stage of a cascade has noise of its own.

    Raises:
        ConfigError: The steps, the label or the guidance cannot be used with this run.
    """
    data = opened.config.data
    keep = kept(steps_of(opened, request), opened.denoiser.schedule.timesteps)
    order = Order(
        num=request.num,
        shape=(data.channels, data.size, data.size),
        seed=derived_seed(request.seed, Stream.SAMPLE_START, stage) if stage else request.seed,
        batch_size=request.batch_size or min(default_batch_size(opened.device, data.size), request.num),
        labels=sample_labels(data, request.num, request.label),
    )
    denoiser = _guided(opened.denoiser.respace(keep), opened, request)
    return Drawing(opened=opened, request=request, keep=keep, denoiser=denoiser, order=order)


def draw_samples(opened: OpenRun, request: SampleRequest, world: World, listener: Listener = SILENT) -> Samples:
    """Draw samples from an open run, in memory; the same in all processes, each of which calls this."""
    ready = drawing(opened, request)
    began = time.perf_counter()
    images = generate(ready.denoiser, request.sampler, ready.order, world, listener)
    facts = ready.facts(world, time.perf_counter() - began, request.num)
    return Samples(images=images, labels=ready.labels, facts=facts)


def _guided(denoiser: Denoiser, opened: OpenRun, request: SampleRequest) -> Denoiser:
    if request.guidance == 1.0:
        return denoiser
    null = null_label(opened.config.data)
    if opened.config.diffusion.label_drop == 0:
        raise ConfigError(
            "--guidance needs a run trained with some labels hidden; this one has diffusion.label_drop 0",
            "leave --guidance out, or train with --diffusion.label-drop 0.1",
        )
    return Guided(denoiser, request.guidance, null)


def _digest(opened: OpenRun) -> str:
    """Tells the weights of a network from any others."""
    net = opened.denoiser.net
    assert isinstance(net, InPrecision), "a run is opened in a precision"
    assert isinstance(net.net, torch.nn.Module), "and it is a network"
    digest = hashlib.sha256()
    for tensor in net.net.state_dict().values():
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def save_samples(folder: Path, samples: Samples) -> dict[str, Any]:
    """Write samples.npz (`arr_0` uint8 NHWC, `arr_1` labels), grid.png and samples.json."""
    arrays: dict[str, Any] = {"arr_0": samples.images}
    if samples.labels is not None:
        arrays["arr_1"] = samples.labels
    with new_folder(folder) as aside:
        np.savez(aside / "samples.npz", **arrays)
        _picture(samples).save(aside / "grid.png")
        (aside / "samples.json").write_text(to_json(dict(samples.facts)), encoding="utf-8")
    return {**samples.facts, "path": str(folder), "grid": str(folder / "grid.png")}


def sample_key(opened: OpenRun, request: SampleRequest) -> str:
    """The name that says everything: sampler, steps, seed, number, weights and what was asked beyond the defaults."""
    sampler = request.sampler
    name = type(sampler).__name__.lower()
    if isinstance(sampler, Ddim) and sampler.eta:
        name += f"-eta{sampler.eta:g}"
    parts = [name, spacing_key(steps_of(opened, request)), f"seed{request.seed}", f"n{request.num}", opened.stamp]
    if request.label is not None:
        # By number: a name can hold what a file name cannot.
        labels = sample_labels(opened.config.data, 1, request.label)
        parts.append(f"label{0 if labels is None else int(labels)}")
    if request.guidance != 1.0:
        parts.append(f"guidance{request.guidance:g}")
    return "-".join(parts)


def steps_of(opened: OpenRun, request: SampleRequest) -> StepsSpec:
    """The steps of a request on the chain of a run."""
    return request.steps or EvenSteps(min(_DEFAULT_STEPS, opened.denoiser.schedule.timesteps))


def spacing_key(steps: StepsSpec) -> str:
    """The steps as a part of a file's name, shortened where it would be too long for one."""
    text = str(steps).replace(",", "_").replace(":", "_")
    if len(text) > 40:
        count = f"at{len(steps.indices)}" if isinstance(steps, ListedSteps) else "sections"
        return f"{count}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def _picture(samples: Samples) -> Image.Image:
    """A grid, by class where several are there; of very many pictures the first."""
    shown = samples.images[:_SHEET_MOST]
    scale = max(1, _SHEET_SIDE // shown.shape[1])
    if samples.labels is not None and len(np.unique(samples.labels)) > 1:
        names, labels = samples.facts["class_names"], samples.labels[:_SHEET_MOST]
        columns = min(10, int(np.unique(labels, return_counts=True)[1].max()))
        return contact_sheet(shown, labels, names, per_class=columns, scale=scale)
    return grid(shown, columns=min(10, len(shown)), scale=scale)
