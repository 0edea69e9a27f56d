"""A folder of real picture files, trained, interrupted, resumed, sampled and measured: each command in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tiny import journalled

SRC = str(Path(__file__).parents[2] / "src")
TRAIN = [
    "--data.size", "16", "--data.channels", "3", "--train.batch-size", "8", "--train.precision", "float32",
    "--train.log-every", "5", "--train.checkpoint-every", "1000",
]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """200 PNG and JPEG files of three classes, of many sizes, modes and spellings of their suffix; and one that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for number in range(200):
        kind = ("disc", "square", "noise")[number % 3]
        (folder / kind).mkdir(exist_ok=True)
        width, height = (int(side) for side in random.integers(17, 60, 2))
        ground = tuple(int(level) for level in random.integers(0, 256, 3))
        image = Image.new("RGB", (width, height), ground)
        draw = ImageDraw.Draw(image)
        box = (width // 4, height // 4, 3 * width // 4, 3 * height // 4)
        if kind == "disc":
            draw.ellipse(box, fill="white")
        elif kind == "square":
            draw.rectangle(box, fill="black")
        else:
            image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        if number % 7 == 0:
            image = image.convert("L")
        suffix = (".png", ".jpg", ".JPEG", ".PNG")[number % 4]
        image.save(folder / kind / f"{number}{suffix}")
    (folder / "disc" / "notes.txt").write_text("not a picture")
    return folder


def start(*words, **settings):
    return subprocess.Popen(
        [sys.executable, "-m", "iddpm", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": SRC},
        **settings,
    )


def run(*words):
    """A command's JSON and what it told on stderr."""
    process = start(*words, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


def interrupt_after(process, out, step):
    """SIGINT once the journal has told of a step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "journal.jsonl").exists() and any(event["step"] >= step for event in journalled(out, "step")):
            process.send_signal(signal.SIGINT)
            return process.communicate(timeout=60)
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[1])


def test_cli_01_folder_is_trained_interrupted_resumed_sampled_and_measured(pictures, tmp_path):
    """The first command names its folder from where it stands, the others in full."""
    out = tmp_path / "run"
    words = ["train", "digits-8", "--data", pictures, "--out", out, *TRAIN]

    first = start(*words[: -len(TRAIN) - 1], "run", *TRAIN, "--train-steps", "100000", "--json", cwd=tmp_path)
    stdout, err = interrupt_after(first, out, 10)
    stopped = json.loads(stdout)
    assert stopped["stopped_by"] == "SIGINT"
    assert stopped["path"] == str(out)
    assert f"run: {out}" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert 10 <= stopped["step"] < 100000
    assert "Traceback" not in err
    assert "200 of 201 pictures used" in err or ("200" in err and "1 ignored" in err)
    assert "the same command goes on from there" in err
    assert (out / "checkpoints" / f"{stopped['step']:09d}" / "manifest.json").is_file()

    last = stopped["step"] + 3
    done, err = run(*words, "--train-steps", last)
    assert (done["resumed_from"], done["step"], done["stopped_by"]) == (stopped["step"], last, None)
    assert f"resumed step {stopped['step']} from" in err

    drawn, err = run("sample", out, "--num", "5", "--steps", "4", "--label", "square")
    assert "cosine schedule, T=100" in err
    with np.load(Path(drawn["path"]) / "samples.npz") as arrays:
        assert arrays["arr_0"].shape == (5, 16, 16, 3)
        assert arrays["arr_1"].tolist() == [2] * 5
    assert drawn["train_step"] == last

    bound, err = run("likelihood", out, "--steps", "4")
    assert bound["num_images"] == 10
    assert bound["split"] == "held-out"
    assert np.isfinite(bound["bits_per_dim"])
    assert bound["train_step"] == last
