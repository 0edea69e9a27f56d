"""`iddpm report`: gathers what a run directory holds and has it written as a page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iddpm.artifacts.run_dir import RunDir, open_run_dir
from iddpm.commands.show import counts_of
from iddpm.data.crop import resized
from iddpm.data.loader import fixed_order
from iddpm.data.store import Store, open_store
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_from_json
from iddpm.report.content import Pictures, Preview, RunReport, SampleSet
from iddpm.report.page import write
from iddpm.runtime.errors import ConfigError, InputError
from iddpm.runtime.files import check_writable
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["gather", "report"]

_SHOWN = 60


def report(paths: Sequence[Path], out: Path | None = None, listener: Listener = SILENT) -> dict[str, Any]:
    """Write RUN/report/index.html, or for several runs OUT/index.html.

    Raises:
        InputError: A path holds no run, or several runs come without `out`.
    """
    runs = [open_run_dir(path) for path in paths]
    if not runs:
        raise ConfigError("no run was given", "iddpm report RUN [RUN ...]")
    if len(runs) > 1 and out is None:
        raise ConfigError("several runs make one page, and it belongs to none of them", "say where with --out FOLDER")
    contents = [gather(run, listener) for run in runs]
    folder = (out or runs[0].path / "report").resolve()
    check_writable(folder)
    page = write(contents, folder / "index.html")
    return {
        "kind": "report",
        "path": str(page),
        "runs": [str(run.path) for run in runs],
        "bytes": page.stat().st_size,
    }


def gather(run: RunDir, listener: Listener = SILENT) -> RunReport:
    """Everything that a run's report shows."""
    config, provenance = config_from_json(run.config), run.provenance
    counts = counts_of(config)
    samples = [_sample_set(folder, facts) for folder, facts in _sample_folders(run, "samples")]
    evaluations = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(run.path.glob("evaluations/*.json"))]
    store = _store(run.store, listener)
    return RunReport(
        name=run.path.name,
        recipe=config.recipe,
        data=_data(config, store),
        device=provenance.get("device"),
        train_steps=_train_steps(run, config),
        batch_size=config.train.batch_size,
        parameters=counts.parameters,
        macs_per_image=counts.macs_per_image,
        flops_per_image=counts.flops_per_image,
        config=run.config,
        provenance=provenance,
        events=run.events(),
        samples=samples,
        evaluations=evaluations,
        held_out=_held_out(store, config) if store else None,
        previews=[_preview(folder, facts) for folder, facts in _sample_folders(run, "preview")],
        forecast=_forecast(run),
        outside_seconds=_outside(provenance, run, evaluations),
    )


def _sample_folders(run: RunDir, kind: str) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for file in sorted(run.path.glob("samples/*/samples.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        if facts["kind"] == kind:
            found.append((file.parent, facts))
    return sorted(found, key=lambda pair: (pair[1]["train_step"], pair[1]["sampler"], pair[1]["steps"]))


def _sample_set(folder: Path, facts: dict[str, Any]) -> SampleSet:
    with np.load(folder / "samples.npz", allow_pickle=False) as arrays:
        images = arrays["arr_0"][:_SHOWN]
        labels = arrays["arr_1"][:_SHOWN] if "arr_1" in arrays else None
    return SampleSet(
        images=images,
        labels=labels,
        class_names=facts["class_names"],
        sampler=facts["sampler"] if not facts["eta"] else f"{facts['sampler']}, eta {facts['eta']:g}",
        steps=facts["steps"],
        seed=facts["seed"],
        seconds_per_image=facts["seconds_per_image"],
        weights=facts["weights"],
        train_step=facts["train_step"],
        guidance=facts["guidance"] if facts["guidance"] != 1.0 else None,
    )


def _preview(folder: Path, facts: dict[str, Any]) -> Preview:
    with np.load(folder / "samples.npz", allow_pickle=False) as arrays:
        labels = arrays.get("arr_1")
        return Preview(
            step=facts["train_step"], images=arrays["arr_0"], labels=labels, class_names=facts["class_names"]
        )


def _store(path: str, listener: Listener) -> Store | None:
    try:
        return open_store(path)
    except InputError as error:
        listener.say(f"note: no held-out pictures are shown: {error.what}")
        return None


def _data(config: RunConfig, store: Store | None) -> str:
    words = [config.data.source, f"{config.data.size} x {config.data.size}"]
    if config.data.classes:
        words.append(f"{config.data.classes} classes")
    if store is not None:
        words.append(f"{len(store.train):,} training pictures")
    return ", ".join(words)


def _held_out(store: Store, config: RunConfig) -> Pictures | None:
    if not len(store.held_out):
        return None
    chosen = _by_class(store) if store.labels is not None and store.classes else fixed_order(store, "held_out", 40)
    images = np.ascontiguousarray(resized(store.read(chosen), config.data.size).transpose(0, 2, 3, 1))
    labels = store.labels[chosen] if store.labels is not None and config.data.classes else None
    return Pictures(images=images, labels=labels, class_names=store.classes)


def _by_class(store: Store, each: int = 6) -> np.ndarray:
    assert store.labels is not None
    order = fixed_order(store, "held_out")
    return np.concatenate([order[store.labels[order] == label][:each] for label in range(min(len(store.classes), 10))])


def _train_steps(run: RunDir, config: RunConfig) -> int:
    asked = [event["train_steps"] for event in run.events() if "train_steps" in event]
    return asked[-1] if asked else config.train.steps


def _forecast(run: RunDir) -> dict[str, Any] | None:
    file = run.path / "forecast.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _outside(provenance: dict[str, Any], run: RunDir, evaluations: list[dict[str, Any]]) -> dict[str, float]:
    sampling = sum(facts["seconds"] for _, facts in _sample_folders(run, "samples"))
    bounds = sum(entry["seconds"] for entry in evaluations if entry["kind"] == "likelihood")
    seconds = {"prepare": provenance.get("prepare_seconds", 0.0), "sample": sampling, "likelihood": bounds}
    return {name: value for name, value in seconds.items() if value > 0}
