"""Sheets of samples beside real pictures: one strip for each sampler, one panel for each number of steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from iddpm.report.content import Pictures, RunReport, SampleSet
from iddpm.report.pictures import class_rows, data_uri, sheet
from iddpm.report.quantities import count, per_image
from iddpm.report.views import Panel, Strip

__all__ = ["SAMPLER_NAMES", "best_set", "comparison_strip", "full_sheets", "hero", "preview_strip", "strips"]

SAMPLER_NAMES = {"ancestral": "Ancestral sampling", "ddim": "DDIM"}
READINGS = {
    "ancestral": "Each step removes some noise and adds a little back, as the training assumed.",
    "ddim": "Each step only removes noise, so a picture is settled by its first noise alone.",
}
MOST_CLASSES, PER_CLASS, UNLABELLED = 10, 3, 24
SCREEN_SIDE, LARGEST_SIDE = 64, 128
GAP = 1


def strips(run: RunReport) -> list[Strip]:
    """One strip for each sampler, ancestral first, panels by K; the same real pictures lead each strip."""
    samplers = sorted(
        {one.sampler for one in run.samples}, key=lambda name: (name != "ancestral", name != "ddim", name)
    )
    made = []
    for sampler in samplers:
        sets = sorted(
            (one for one in run.samples if one.sampler == sampler and len(one.images)),
            key=lambda one: one.steps,
        )
        if sets:
            titled = [(f"K = {count(one.steps)}", _note(one, sets), one) for one in sets]
            title = SAMPLER_NAMES.get(sampler, sampler)
            made.append(_strip(title, READINGS.get(sampler, ""), titled, run.held_out))
    return made


def comparison_strip(runs: Sequence[RunReport]) -> tuple[Strip | None, list[str]]:
    """One panel for each run: its set with the most steps; and the names of runs that have none like the first."""
    found = [(run, one) for run in runs if (one := best_set(run)) is not None]
    if not found:
        return None, []
    shape = found[0][1].images.shape[1:]
    shown = [(run, one) for run, one in found if one.images.shape[1:] == shape]
    real = next((run.held_out for run, _ in shown if run.held_out is not None), None)
    titled = [(run.name, f"{_sampler(one)}, K = {count(one.steps)}", one) for run, one in shown]
    unseen = [run.name for run in runs if not any(run is seen for seen, _ in shown)]
    return _strip("Samples", "", titled, real), unseen


def best_set(run: RunReport) -> SampleSet | None:
    """Of the latest weights the set with the most steps, an ancestral one where there are several."""
    sets = [one for one in run.samples if len(one.images)]
    return max(sets, key=lambda one: (one.train_step or 0, one.steps, one.sampler == "ancestral"), default=None)


def hero(run: RunReport) -> tuple[Strip, str] | None:
    """Twelve pictures at most of the best set, one of each class first, and a line that says which."""
    best = best_set(run)
    if best is None:
        return None
    shown = _reduced(best)
    order = _one_of_each(shown)[:12]
    columns = 4 if len(order) > 6 else min(3, len(order))
    index = np.full(-(-len(order) // columns) * columns, -1, dtype=np.int64)
    index[: len(order)] = order
    panel = _panel("", "", shown, index.reshape(-1, columns), f"{len(order)} sampled pictures")
    words = f"{_sampler(best)}, {count(best.steps)} steps, not selected."
    return Strip(title="", reading="", panels=[panel], scale=_scale(shown.images, 96)), words


def full_sheets(run: RunReport) -> list[tuple[str, Strip]]:
    """Each set in full, up to a hundred pictures, where a strip cannot show it all; with what it is."""
    made = []
    for one in sorted(run.samples, key=lambda one: (one.sampler != "ancestral", one.sampler, one.steps)):
        limit = max(8, min(100, 400_000 // max(one.images.shape[1] * one.images.shape[2], 1)))
        if len(one.images) <= (PER_CLASS * MOST_CLASSES if one.labels is not None else UNLABELLED):
            continue
        name = f"{_sampler(one)}, K = {count(one.steps)}"
        cut = _first(one, limit)
        index, rows = _layout(_reduced(cut), _classes([cut], 1000), -(-limit // 4), columns=10)
        shown = _reduced(cut)
        panel = _panel("", "", shown, index, f"{len(cut.images)} pictures, {name}")
        made.append(
            (f"{len(cut.images)} pictures: {name}{_apart(one, run.samples)}", _around("", "", [panel], rows, shown))
        )
    return made


def preview_strip(run: RunReport, most: int = 8) -> Strip | None:
    """Previews in order, at most eight, evenly spaced, the last among them; None where there are none."""
    previews = list(run.previews)
    if not previews:
        return None
    if len(previews) > most:
        previews = [previews[place] for place in np.linspace(0, len(previews) - 1, most).round().astype(int)]
    titled = [(f"step {count(one.step)}", "", one) for one in previews]
    return _strip(
        "While it was learning", "Small sets drawn during training, always from the same noise.", titled, None, 2, 12
    )


def _strip(
    title: str,
    reading: str,
    sets: Sequence[tuple[str, str, Pictures]],
    held_out: Pictures | None,
    per_class: int = PER_CLASS,
    unlabelled: int = UNLABELLED,
) -> Strip:
    named = list(sets)
    if held_out is not None and len(held_out.images):
        named = [("Real", "held out from training", held_out), *named]
    shown = [(words, note, _reduced(one)) for words, note, one in named]
    classes = _classes([one for _, _, one in sets], MOST_CLASSES)
    labelled = [one.labels is not None for _, _, one in shown]
    if not all(labelled):
        classes = []
    panels, rows = [], []
    for words, note, one in shown:
        index, rows = _layout(one, classes, per_class if classes else unlabelled, columns=4)
        panels.append(_panel(words, note, one, index, f"{words}: pictures by {title}"))
    if held_out is not None and len(held_out.images):
        panels[0] = replace(panels[0], real=True, alt="real pictures that training did not see")
    if reading == "" and len(classes) == MOST_CLASSES:
        reading = f"The first {MOST_CLASSES} classes."
    return _around(title, reading, panels, rows, shown[0][2])


def _around(title: str, reading: str, panels: Sequence[Panel], rows: Sequence[str], like: Pictures) -> Strip:
    return Strip(
        title=title,
        reading=reading,
        panels=panels,
        rows=rows,
        scale=_scale(like.images, SCREEN_SIDE),
        row_height=like.images.shape[1] + GAP,
    )


def _layout(one: Pictures, classes: Sequence[int], most: int, columns: int) -> tuple[np.ndarray, list[str]]:
    """Positions by row and column, and the names of the rows: a class each, or none."""
    if one.labels is not None and classes:
        index = class_rows(one.labels, classes, most)
        filled = (index >= 0).any(axis=0)
        index = index[:, : max(int(filled.sum()), 1)]
        return index, [_class_name(one, label) for label in classes]
    n = min(len(one.images), most)
    columns = min(columns, n)
    index = np.full(-(-n // columns) * columns, -1, dtype=np.int64)
    index[:n] = np.arange(n)
    return index.reshape(-1, columns), []


def _panel(title: str, note: str, one: Pictures, index: np.ndarray, alt: str) -> Panel:
    picture = _empty(one, index) if (index < 0).all() else sheet(one.images, index, pad=GAP, background=None)
    return Panel(title=title, note=note, source=data_uri(picture), alt=alt, width=picture.width, height=picture.height)


def _empty(one: Pictures, index: np.ndarray) -> Image.Image:
    """A sheet without a single picture: no class of the strip occurs."""
    height, width = one.images.shape[1:3]
    return Image.new(
        "RGBA", (index.shape[1] * (width + GAP) + GAP, index.shape[0] * (height + GAP) + GAP), (0, 0, 0, 0)
    )


def _classes(sets: Sequence[Pictures], most: int) -> list[int]:
    """The first classes that occur in any of the sets, in order."""
    found = [one.labels for one in sets if one.labels is not None]
    return [int(label) for label in np.unique(np.concatenate(found))[:most]] if found else []


def _class_name(one: Pictures, label: int) -> str:
    return str(one.class_names[label]) if 0 <= label < len(one.class_names) else f"class {label}"


def _one_of_each(one: Pictures) -> np.ndarray:
    """All positions, the first picture of each class first, then the second ones ..."""
    if one.labels is None:
        return np.arange(len(one.images))
    turn = np.array([int((one.labels[:place] == label).sum()) for place, label in enumerate(one.labels)])
    return np.lexsort((one.labels, turn))


def _first(one: SampleSet, n: int) -> SampleSet:
    return replace(one, images=one.images[:n], labels=None if one.labels is None else one.labels[:n])


def _reduced(one: Pictures) -> Pictures:
    """Pictures above 128 pixels are halved until they are not: a page of them would weigh too much."""
    images = one.images
    while images.shape[1] > LARGEST_SIDE and images.shape[1] % 2 == 0 and images.shape[2] % 2 == 0:
        n, h, w, c = images.shape
        images = images.reshape(n, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4)).round().astype(np.uint8)
    return one if images is one.images else replace(one, images=images)


def _scale(images: np.ndarray, side: int) -> float:
    """Whole-numbered enlargement to about `side` screen pixels; larger pictures are shown as they are."""
    return float(max(1, round(side / images.shape[1])))


def _sampler(one: SampleSet) -> str:
    return SAMPLER_NAMES.get(one.sampler, one.sampler)


def _note(one: SampleSet, sets: Sequence[SampleSet]) -> str:
    time = per_image(one.seconds_per_image) if one.seconds_per_image is not None else ""
    return (time + _apart(one, sets)).removeprefix(", ")


def _apart(one: SampleSet, sets: Sequence[SampleSet]) -> str:
    """What a set has to itself beside its sampler and K, where the sets differ in it; begins with a comma."""
    told = {
        "seed": f"seed {one.seed}",
        "train_step": f"step {count(one.train_step)}",
        "weights": f"weights {one.weights}",
        "guidance": "no guidance" if one.guidance is None else f"guidance {one.guidance:g}",
    }
    differing = [words for name, words in told.items() if len({getattr(other, name) for other in sets}) > 1]
    if one.guidance is not None and told["guidance"] not in differing:
        differing.append(told["guidance"])
    return "".join(f", {words}" for words in differing)
