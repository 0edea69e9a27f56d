"""The page: whole, self-contained, safe, repeatable, and honest about what is missing."""

import base64
import io
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iddpm.report.content import Pictures, Preview, RunReport, SampleSet
from iddpm.report.page import render, write
from iddpm.runtime.errors import OutputError

CLASSES = ("planets", "sprouts", "thumbs")
VOID = {"meta", "img", "br", "link"}
SECTIONS = ["pictures", "learning", "time", "bits", "settings", "provenance"]


class Page(HTMLParser):
    """Tags with their attributes, and the text without style sheets; fails on tags that do not nest."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and all(attributes.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]


def pictures(n: int, size: int = 8, channels: int = 3) -> dict:
    images = np.random.default_rng(size).integers(0, 255, (n, size, size, channels), dtype=np.uint8)
    return {"images": images, "labels": np.arange(n) % 3, "class_names": CLASSES}


def step(number: int) -> dict:
    return {
        "event": "step",
        "step": number,
        "elapsed_seconds": number * 0.5,
        "loss": 2.0 / number,
        "parts": {"mse": 1.9 / number, "bound": 5.0 + 10 / number},
        "grad_norm": 0.5,
        "lr": 1e-4,
        "images_per_second": 128.0,
        "seconds": {"data": 0.1, "forward": 1.0, "backward": 2.0, "optimizer": 0.5, "ema": 0.2},
        "peak_memory_bytes": 2**30,
        "mse_by_quartile": [4.0 / number, 3.0 / number, None, 1.0 / number],
    }


LIKELIHOOD = {
    "kind": "likelihood",
    "bits_per_dim": 4.0,
    "standard_error_bits_per_dim": 0.031,
    "prior_bits_per_dim": 0.5,
    "decoder_bits_per_dim": 2.0,
    "terms_bits_per_dim": [0.25, 0.25, 1.0, 2.0],
    "timesteps": [99, 60, 5, 0],
    "num_images": 200,
    "num_steps": 4,
    "chain_steps": 100,
    "weights": "ema-0.9999",
    "split": "held-out",
    "seconds": 61.2,
}
RUN = RunReport(
    name="demo",
    recipe="demo-recipe",
    data="avatars, 8 x 8, 3 classes",
    device="CPU, 2 threads",
    train_steps=100,
    batch_size=64,
    parameters=1_912_646,
    macs_per_image=97_400_000,
    flops_per_image=194_800_000,
    config={"recipe": "demo-recipe", "train": {"lr": 2e-4, "schedule": {"kind": "Cosine", "s": 0.008}, "flip": False}},
    provenance={"torch": "2.13.0", "threads": 2, "git_commit": None},
    events=[
        {"event": "start", "step": 0},
        *(step(number) for number in range(1, 81)),
        {"event": "resume", "step": 40, "changes": {"train.steps": [80, 100]}},
        *(step(number) for number in range(41, 101)),
        {"event": "end", "step": 100, "elapsed_seconds": 50.0},
    ],
    samples=[
        SampleSet(sampler=sampler, steps=steps, seconds_per_image=0.031 * steps, weights="ema-0.9999", **pictures(12))
        for sampler in ("ddim", "ancestral")
        for steps in (50, 10)
    ],
    evaluations=[LIKELIHOOD, {"kind": "precision", "value": 0.5}],
    held_out=Pictures(**pictures(9)),
    previews=[Preview(step=number, **pictures(6)) for number in (50, 100)],
    forecast={"training_seconds": {"value": 45.0, "low": 30.0, "high": 60.0}},
    outside_seconds={"prepare": 2.0, "sample": 9.3, "likelihood": 61.2},
)
BARE = RunReport(name="bare")
FEW = [RUN.events[0], {"event": "step", "step": 1, "elapsed_seconds": 0.5, "loss": 2.0}, RUN.events[-1]]
LEAN = replace(RUN, events=FEW)


TROUBLED = [
    {"event": "start", "step": 0, "batch_size": 64},
    {"event": "init", "step": 0, "source": "runs/old", "source_step": 5, "not_loaded": ["out.2.bias"]},
    *({**step(n), "bound_by_quartile": [9.0, 1.0, 0.5, 0.1], "gradient_noise_scale": 9.0 * n} for n in range(1, 31)),
    {"event": "evaluation", "step": 30, "bits_per_dim": 4.5, "standard_error_bits_per_dim": 0.1, "num_images": 64},
    {"event": "checkpoint", "step": 20, "bytes": 2**30, "copy_seconds": 0.2, "wait_seconds": 0.1, "write_seconds": 4.0},
    {"event": "rollback", "step": 30, "to_step": 20, "lr_factor": 0.5, "reason": "10 steps in a row"},
    *({**step(n), "skipped": 2} for n in range(21, 41)),
    {"event": "evaluation", "step": 40, "bits_per_dim": 4.4, "standard_error_bits_per_dim": 0.1, "num_images": 64},
    {"event": "checkpoint_failed", "step": 40, "reason": "No space left on device"},
    {"event": "failed", "step": 40, "reason": "out of luck"},
]


@pytest.fixture(scope="module")
def html() -> str:
    return render([RUN])


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_section_is_there_and_linked(page: Page):
    assert [tag["id"] for tag in page.all("section")] == SECTIONS
    assert {tag["href"] for tag in page.all("a")} == {f"#{name}" for name in SECTIONS}
    assert len(page.all("h1")) == 1


def test_the_headline_has_its_numbers_with_units_and_protocol(page: Page):
    for words in (
        "A diffusion model of 1.91 million parameters (recipe demo-recipe), trained on avatars, 8 x 8, 3 classes.",
        "100 training steps took 1 min 10 s on CPU, 2 threads.",
        "97.4 MMAC",
        "195 MFLOP",
        "128 images/s",
        "1.00 GiB",
        "4.000 ± 0.031",
        "200 held-out pictures, 4 of 100 steps, weights ema-0.9999",
        "finished at step 100",
    ):
        assert words in page.text


def test_samplers_and_steps_stand_in_order_with_their_times(page: Page):
    text = page.text
    order = [
        text.index(words)
        for words in (
            "Ancestral sampling Each",
            "K = 10 0.31 s an image",
            "K = 50 1.6 s an image",
            "DDIM Each step only",
        )
    ]
    assert order == sorted(order)
    assert text.count("held out from training") == 2
    assert all(name in text for name in CLASSES)


def test_pictures_are_inlined_exact_and_enlarged_without_blur(page: Page, html: str):
    shown = page.all("img", class_="pixels")
    assert len(shown) == 1 + 2 * 3 + 2
    assert "image-rendering: pixelated" in html
    assert all(tag["alt"] for tag in shown)
    real = next(tag for tag in shown if tag["alt"].startswith("real"))
    picture = Image.open(io.BytesIO(base64.b64decode(real["src"].partition(",")[2])))
    assert picture.size == (3 * 9 + 1, 3 * 9 + 1)
    assert RUN.held_out is not None
    assert np.array_equal(np.asarray(picture.convert("RGB"))[1:9, 10:18], RUN.held_out.images[3])
    assert f"--w: {picture.width * 8.0}" in real["style"]


def test_figures_have_titles_readings_and_numbers(page: Page):
    charts = page.all("svg", class_="plot")
    assert [chart["aria-label"] for chart in charts] == [
        "Loss",
        "Error of the prediction",
        "Bound, sampled",
        "Error by amount of noise",
        "Gradient norm",
        "Learning rate",
        "Speed",
        "Bits by timestep",
    ]
    assert len(page.all("figcaption")) == len(charts) + 1
    for unit in (
        "bits/dim in each step, log scale",
        "mean square, noise has 1, log scale",
        "images/s",
        "before clipping",
    ):
        assert unit in page.text


def test_time_settings_provenance_and_resumes_are_told(page: Page):
    for words in (
        "likelihood computing bits per dim 1 min 1 s",
        "prepare making the data set 2.0 s",
        "outside training",
    ):
        assert words in page.text
    for words in ("lr 0.0002", "kind Cosine", "s 0.008", "flip no", "torch 2.13.0", "git_commit none"):
        assert words in page.text
    assert "train.steps: 80 → 100" in page.text
    assert "40 steps, 20 s" in page.text
    assert "training 45 s 30 s to 1 min 1 min 10 s 56% more than forecast" in page.text


def test_ids_are_unique_and_all_that_is_referred_to_exists(page: Page):
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(ids.values()) == 1
    referred = [attributes["href"][1:] for tag, attributes in page.tags if tag in ("use", "a") and "href" in attributes]
    referred += [
        name for _, attributes in page.tags for name in re.findall(r"url\(#([^)]*)\)", attributes.get("clip-path", ""))
    ]
    assert referred
    assert set(referred) <= set(ids)


def test_a_run_that_had_trouble_says_so_at_the_top_and_in_full_below():
    page = Page(render([replace(RUN, events=TROUBLED, evaluations=())]))
    for words in (
        "failed at step 40 of 100",
        "Training failed at step 40: out of luck.",
        "went back to a checkpoint once",
        "40 training steps were skipped",
        "A checkpoint could not be written",
        "did not start from random weights but from those of step 5 in runs/old",
        "Dotted upright lines: the run went back to a checkpoint there.",
        "Bits per dim, while training 4.40 ± 0.10",
        "Those measured while training are under “Learning”.",
        "1 save, up to 1.00 GiB",
        "30 went back to step 20 10 steps in a row; learning rate times 0.5",
    ):
        assert words in page.text, words
    assert [tag["aria-label"] for tag in page.all("svg", class_="plot")] == [
        "Loss",
        "Bits per dim, held out",
        "Error of the prediction",
        "Bound, sampled",
        "Error by amount of noise",
        "Bound by amount of noise",
        "Gradient norm",
        "Learning rate",
        "Gradient noise scale",
        "Speed",
    ]
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(ids.values()) == 1


@pytest.mark.parametrize("runs", [[RUN], [LEAN, BARE], [replace(RUN, events=TROUBLED)]])
def test_nothing_is_fetched_and_nothing_runs(runs: list[RunReport]):
    text = render(runs)
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert "://" not in re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", text)
    assert "@import" not in text
    assert all(tag["src"].startswith("data:image/png;base64,") for tag in page.all("img"))
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_both_themes_and_paper_are_provided(html: str):
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html
    plots = re.findall(r'<svg class="plot".*?</svg>', html, flags=re.DOTALL)
    assert plots
    assert not [
        plot
        for plot in plots
        if re.search(r"#[0-9a-f]{6}\b(?!-)", re.sub(r"(id|href)=\"[^\"]*\"|url\([^)]*\)", "", plot))
    ]


def test_the_same_content_gives_the_same_bytes(html: str):
    assert render([RUN]) == html
    assert render([LEAN, BARE]) == render([LEAN, BARE])


def test_hostile_names_are_only_text():
    evil = "<script>alert('&x\"')</script>"
    hostile = replace(
        RUN,
        name=evil,
        recipe=evil,
        data=evil,
        device=evil,
        config={evil: {evil: evil}},
        provenance={evil: [evil]},
        samples=[SampleSet(sampler=evil, steps=5, weights=evil, **{**pictures(40), "class_names": (evil,) * 3})],
        evaluations=[{**LIKELIHOOD, "weights": evil, "split": evil}, {"kind": evil, evil: evil}],
        events=[
            *FEW,
            {"event": "resume", "step": 100, "changes": {evil: [evil, evil]}},
            {"event": "init", "step": 0, "source": evil, "not_loaded": [evil], "labels": evil},
            {"event": "evaluation", "step": 100, "bits_per_dim": 3.0, "weights": evil},
            *(
                {"event": kind, "step": 100, "to_step": 100, "reason": evil}
                for kind in ("rollback", "checkpoint_failed", "failed")
            ),
        ],
        forecast={evil: 5},
        outside_seconds={evil: 3},
    )
    for runs in ([hostile], [hostile, replace(BARE, name=evil, config={evil: 2})]):
        text = render(runs)
        assert "<script" not in text
        assert Page(text).text.count(evil) >= 8


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (BARE, ["nothing journalled yet", "No pictures have been sampled", "No training step has been logged yet"]),
        (BARE, ["No times have been recorded yet", "Bits per dim have not been computed", "settings are not known"]),
        (replace(RUN, events=RUN.events[:1]), ["No training step has been logged yet", "K = 50"]),
        (replace(LEAN, samples=()), ["No pictures have been sampled", "4.000 ± 0.031"]),
        (replace(LEAN, samples=(), held_out=None, previews=()), ["iddpm sample RUN"]),
        (replace(LEAN, evaluations=()), ["Bits per dim have not been computed", "iddpm likelihood RUN"]),
        (replace(RUN, events=RUN.events[:9]), ["still going, or stopped without a word"]),
        (replace(RUN, events=[{**step(1), "loss": float("nan")}]), ["1 logged losses are not finite numbers"]),
        (replace(LEAN, evaluations=[{"kind": "likelihood", "bits_per_dim": 5}]), ["5.000 bits/dim"]),
        (replace(LEAN, held_out=None), ["K = 50"]),
    ],
)
def test_what_is_missing_is_said(run: RunReport, words: list[str]):
    text = Page(render([run])).text
    for expected in words:
        assert expected in text


@pytest.mark.parametrize(
    "one",
    [
        SampleSet(sampler="heun", steps=3, images=np.zeros((1, 28, 28, 1), np.uint8)),
        SampleSet(sampler="ddim", steps=3, images=np.zeros((50, 8, 8, 1), np.uint8)),
        SampleSet(sampler="ddim", steps=3, images=np.zeros((2, 512, 256, 3), np.uint8), guidance=2.0),
        SampleSet(sampler="ddim", steps=3, images=np.zeros((0, 8, 8, 3), np.uint8)),
        SampleSet(sampler="ddim", steps=3, images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.array([5, 999, 5, 7])),
    ],
)
def test_any_shape_of_samples_is_shown(one: SampleSet):
    page = Page(render([replace(LEAN, samples=[one], held_out=None)]))
    assert ("K = 3" in page.text) == bool(len(one.images))


def test_real_pictures_of_other_classes_leave_their_rows_empty():
    text = render([replace(LEAN, held_out=Pictures(**{**pictures(4), "labels": np.full(4, 77)}))])
    assert "Real" in Page(text).text


def test_sets_that_share_sampler_and_steps_are_told_apart():
    base = SampleSet(sampler="ddim", steps=5, train_step=10, **pictures(3))
    text = Page(render([replace(LEAN, samples=[base, replace(base, train_step=20, seed=4)])])).text
    assert "seed 0, step 10" in text
    assert "seed 4, step 20" in text


def test_several_runs_stand_side_by_side():
    other = replace(RUN, name="wide", parameters=7_600_000, config={"train": {"lr": 1e-4}}, samples=(), evaluations=())
    page = Page(render([RUN, other, BARE]))
    assert "3 runs compared" in page.text
    assert "parameters 1.91 million 7.60 million –" in page.text
    assert "train.lr 0.0002 0.0001 –" in page.text
    assert "bits/dim ± standard error 4.000 ± 0.031 – –" in page.text
    assert "Not shown: wide, bare" in page.text
    loss = next(attributes for attributes in page.all("svg", class_="plot") if attributes["aria-label"] == "Loss")
    assert loss
    assert len(page.all("ul", class_="keys")) == 3
    assert "backward" in page.text


def test_several_runs_of_which_nothing_is_known():
    text = Page(render([BARE, replace(BARE, name="other")])).text
    for words in (
        "None of the runs has samples yet",
        "No training step",
        "No times",
        "have not been computed",
        "All settings are",
    ):
        assert words in text


def test_the_page_is_written_whole_into_a_new_folder(tmp_path: Path):
    path = write([LEAN], tmp_path / "report" / "index.html")
    assert path.read_text(encoding="utf-8") == render([LEAN])
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    with pytest.raises(OutputError):
        write([BARE], tmp_path / "file" / "index.html")
