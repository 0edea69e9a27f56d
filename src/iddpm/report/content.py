"""What a report is made of: plain data that a command gathers from a run directory.

Journal events are the dicts of `journal.jsonl`. Each has `event` and, where known, `time` (seconds since 1970, or
an ISO 8601 text). A run that still goes, stopped early or was never sampled lacks parts; every field but `name`
may be left out.

- `start`, `resume`: `step`, where the process set out; a resume may have `changes`, `{path: [before, now]}`.
- `step`: `step`, `elapsed_seconds` (of all the training that led here), `loss`, `parts` (`mse`; `bound` in
  bits/dim), `grad_norm`, `lr`, `images_per_second`, `seconds` (by phase), `peak_memory_bytes`, and sometimes
  `loss_by_quartile`, `mse_by_quartile`, `bound_by_quartile` (None where no timestep fell), `skipped` (steps whose loss or
  gradient was not finite), `loss_scale` (fp16), `gradient_noise_scale` (pictures; None where noise hides the signal).
  Losses and norms are means since the step event before, and seconds are sums.
- `evaluation`: `step`, `bits_per_dim`, `standard_error_bits_per_dim`, `num_images`, `num_steps`, `weights`, `seconds`.
- `preview`: `step`; sometimes `seconds`.
- `checkpoint`, `snapshot`: `step`; `bytes`, `copy_seconds`, `wait_seconds` (training stood still for these), `write_seconds`
  (beside it); older ones sometimes `seconds`. `checkpoint_failed`: `step`, `reason`.
- `skipped`: `step`, `steps`; in place of the step event's. `rollback`: `step`, `to_step`, `lr_factor` (of all rollbacks),
  `reason`; the clock runs on. `failed`: `step`, `reason`.
- `init`: `source`, `source_step`, `not_loaded`, `unused`, `labels`. `micro_batch`: `step`, `micro_batch_size`, `reason`.
  `data_wait`: `step`, `share`, `cure`.
- `interrupt`, `end`: `step`, `elapsed_seconds`, and perhaps `seconds_by_phase` since the last step event.

A run killed without a word resumes from its last checkpoint, and one whose losses are no longer finite goes back to it:
step events after that step are told twice, and the later ones count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from iddpm.report.quantities import Number

__all__ = ["Pictures", "Preview", "RunReport", "SampleSet"]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures with their classes, in the order in which they are shown.

    Attributes:
        images: Grey (one channel) or RGB pictures.
        labels: Index into `class_names`, or None where the classes are not known.
        class_names: May be empty; a class without a name is shown by its number.
    """

    images: UInt8[np.ndarray, "n h w c"]
    labels: Int[np.ndarray, " n"] | None = None
    class_names: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SampleSet(Pictures):
    """Pictures that one sampler made.

    Attributes:
        sampler: `ancestral`, `ddim` ...
        steps: K, the sampling steps of each picture.
        seed: Sets of one seed start from the same noise.
        seconds_per_image: Wall-clock time of the whole batch divided by its pictures.
        weights: `raw`, `ema-0.9999` ...
        train_step: The training step of the weights.
        guidance: Weight of classifier-free guidance, where it was used.
    """

    sampler: str
    steps: int
    seed: int = 0
    seconds_per_image: Number | None = None
    weights: str | None = None
    train_step: int | None = None
    guidance: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Preview(Pictures):
    """A few samples drawn while the run was training, after `step` steps."""

    step: int


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run, as its report shows it.

    Attributes:
        name: The run directory's name.
        recipe: Name of the recipe.
        data: The training data in a few words: `avatars, 32 x 32, 10 classes, 9,500 pictures`.
        device: What it was trained on: `CPU, 2 threads (AMD EPYC)`.
        train_steps: How many training steps were asked for.
        batch_size: Pictures per training step, over all processes.
        parameters: Trainable numbers of the network.
        macs_per_image: Multiply-accumulates of one forward pass of one picture.
        flops_per_image: The same pass in floating-point operations: two for each multiply-accumulate.
        config: The whole configuration.
        provenance: Versions, threads, CPU, git commit, dates: shown as given.
        events: The journal, oldest first.
        samples: One set for each sampler and number of steps.
        evaluations: The JSON objects of `evaluations/`; those with `kind: likelihood` are shown in detail.
        held_out: Real pictures that training did not see.
        previews: Oldest first.
        forecast: What was foretold: `{name: number or estimate}`, an estimate having `value` and perhaps `low` and
            `high`; set beside what was measured for `training_seconds`, `total_seconds`, `images_per_second`,
            `seconds_per_step` and `peak_memory_bytes`.
        outside_seconds: Time outside training by what it was for (`prepare`, `sample`, `likelihood` ...).
    """

    name: str
    recipe: str | None = None
    data: str | None = None
    device: str | None = None
    train_steps: int | None = None
    batch_size: int | None = None
    parameters: int | None = None
    macs_per_image: Number | None = None
    flops_per_image: Number | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[SampleSet] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    held_out: Pictures | None = None
    previews: Sequence[Preview] = ()
    forecast: Mapping[str, Any] | None = None
    outside_seconds: Mapping[str, Number] = field(default_factory=dict)
