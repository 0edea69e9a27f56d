"""The command as people run it: help, bad input, JSON. Most of it in this process; a few starts of the real command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iddpm.cli.main import COMMANDS, main
from tiny import cut

SRC = str(Path(__file__).parents[2] / "src")


def run(*words):
    """The command in this process: its exit status."""
    return main([str(word) for word in words])


def test_overview_names_every_command_and_imports_nothing_heavy():
    code = """
import sys
from iddpm.cli.main import main
status = main(["--help"])
heavy = sorted({"torch", "numpy", "tyro", "rich", "PIL", "jaxtyping", "cattrs"} & set(sys.modules))
print(status, heavy, len(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": SRC}, timeout=60
    )
    assert done.stderr == ""
    *overview, last = done.stdout.splitlines()
    assert last.startswith("0 [] ")
    assert int(last.split()[-1]) < 150
    for command in COMMANDS:
        assert any(line.strip().startswith(command) for line in overview)


@pytest.mark.parametrize("words", [[], ["-h"], ["help"]])
def test_overview_is_there_however_it_is_asked_for(words, capsys):
    assert run(*words) == 0
    assert "usage: iddpm COMMAND" in capsys.readouterr().out


def test_version_is_the_package_version(capsys):
    from iddpm import __version__

    assert run("--version") == 0
    assert capsys.readouterr().out == f"iddpm {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_every_flag(command, capsys):
    with pytest.raises(SystemExit) as left:
        run(command, "--help")
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"iddpm {command}" in text
    assert "--json" in text


def test_real_command_refuses_in_two_lines(tmp_path):
    """In a process of its own; that one which works ends with 0 is shown by `test_folder_run`."""
    refused = subprocess.run(
        [sys.executable, "-m", "iddpm", "sample", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": SRC},
        timeout=120,
    )
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == [
        f"iddpm sample: {tmp_path / 'missing'} does not exist",
        "give the folder that `iddpm train --out` named",
    ]


@pytest.fixture
def places(tmp_path, small_digits, trained):
    """Paths that bad input is made of."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("not a picture")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("not a picture")
    return {
        "missing": tmp_path / "missing", "empty": tmp_path / "empty", "words": tmp_path / "words",
        "file": tmp_path / "file.txt", "below": tmp_path / "file.txt" / "below", "new": tmp_path / "new",
        "store": small_digits, "run": trained,
    }  # fmt: skip


BAD = [
    # what is typed, what the first line names, what the message says to do or allows
    ("trian digits-8", "trian", "train"),
    ("--bogus", "--bogus", "recipes"),
    ("recipes --wide", "--wide", "--help"),
    ("show nothing", "nothing", "iddpm recipes"),
    ("show {missing}", "missing", "iddpm recipes"),
    ("show {empty}", "empty", "iddpm train"),
    ("prepare {missing} --size 8 --out {new}", "missing", "avatars"),
    ("prepare {empty} --size 8 --out {new}", "empty", ".png"),
    ("prepare {words} --size 8 --out {new}", "words", ".png"),
    ("prepare {file} --size 8 --out {new}", "file.txt", ".npz"),
    ("prepare digits --size 0 --out {new}", "size 0", "1 or more"),
    ("prepare digits --size 8 --out {below}", "file.txt", "another place"),
    ("prepare digits --size 8 --out {words}", "words", "another place"),
    ("prepare digits --size eight --out {new}", "eight", "--help"),
    ("prepare digits --out {new}", "--size", "--help"),
    ("train digitz --out {new}", "digitz", "digits-8"),
    ("train digits-8 --out {new} --data {missing}", "missing", "avatars"),
    ("train digits-8 --out {new} --data {empty}", "empty", ".png"),
    ("train digits-8 --out {new} --data {store} --data.size 16", "size 8", "--size 16"),
    ("train digits-8 --out {new} --data {store} --data.channels 3", "channels 1", "--channels 3"),
    ("train digits-8 --out {new} --data {store} --data.size 9", "9", "8"),
    ("train digits-8 --out {below} --data {store}", "file.txt", "another place"),
    ("train digits-8 --out {words} --data {store}", "words", "--out"),
    ("train digits-8 --out {run} --data {store}", "another run", "--out"),
    ("train digits-8 --out {new} --data {store} --device tpu", "tpu", "cpu"),
    ("train digits-8 --out {new} --data {store} --train.warp 1", "--train.warp", "--help"),
    ("sample {missing}", "missing", "iddpm train"),
    ("sample {empty}", "empty", "iddpm train"),
    ("sample {run} --steps 21", "21", "20"),
    ("sample {run} --steps 0", "0", "1"),
    ("sample {run} --steps=-1", "-1", "1"),
    ("sample {run} --steps 10.5", "10.5", "100"),
    ("sample {run} --steps abc", "abc", "100"),
    ("sample {run} --steps ddim21", "ddim21", "ddim20"),
    ("sample {run} --steps at:0,20", "20", "19"),
    ("sample {run} --num 0", "--num 0", "least"),
    ("sample {run} --label cow", "cow", "0, 1, 2"),
    ("sample {run} --sampler magic", "magic", "--help"),
    ("sample {run} --sampler ancestral --eta 0.5", "eta", "ddim"),
    ("sample {run} --sampler ddim --eta 2", "eta", "1"),
    ("sample {run} --weights ema-0.5", "ema-0.5", "ema-0.99"),
    ("sample {run} --at-step 5", "step 5", "8"),
    ("sample {run} --schedule linear", "--schedule", "--help"),
    ("sample {run} --net.channels 64", "--net.channels", "--help"),
    ("sample {run} {run}", "enlarges", "fit"),
    ("likelihood {missing}", "missing", "iddpm train"),
    ("likelihood {run} --data {missing}", "missing", "avatars"),
    ("likelihood {run} --data {empty}", "empty", ".png"),
    ("likelihood {run} --steps 21", "21", "20"),
    ("likelihood {run} --split test", "test", "--help"),
    ("report {missing}", "missing", "iddpm train"),
    ("report {run} {run}", "several runs", "--out"),
    ("report {run} --out {below}", "file.txt", "another place"),
]


def listed(folder):
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("typed", "named", "advice"), BAD, ids=[typed for typed, _, _ in BAD])
def test_bad_input_gives_a_line_or_two_and_loses_nothing(typed, named, advice, places, capsys):
    before = [listed(places[name]) for name in ("run", "store", "words")]
    status = run(*typed.format(**places).split())
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert named in err.splitlines()[0] or named in err
    assert advice in err
    told = [line for line in err.splitlines() if not line.startswith(("trained: ", "steps ", "data: "))]
    assert len(told) <= 3
    assert "Traceback" not in err
    assert max(map(len, told)) < 500
    assert [listed(places[name]) for name in ("run", "store", "words")] == before
    assert not (places["new"] / "config.json").exists()


def test_checkpoint_cut_in_half_is_reported(trained, tmp_path, capsys):
    import shutil

    copy = shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("samples", "evaluations"))
    for folder in (copy / "checkpoints").iterdir():
        cut(folder / "model.safetensors")
    assert run("sample", copy, "--steps", "2") == 2
    err = capsys.readouterr().err
    assert "model.safetensors is damaged" in err
    assert len(err.splitlines()) == 2


JSON = [
    ("recipes", {"recipes"}),
    ("show cifar10", {"parameters", "macs_per_image", "flops_per_image", "config"}),
    ("show {run}", {"path", "step", "parameters", "provenance"}),
    (
        "prepare {pictures} --size 8 --out {new}",
        {"found", "used", "ignored", "damaged", "train", "held_out", "seconds"},
    ),
    ("sample {run} --num 2 --steps 2", {"path", "grid", "num", "steps", "seconds_per_image"}),
    (
        "likelihood {run} --num 2 --steps 2",
        {"bits_per_dim", "prior_bits_per_dim", "num_images", "num_steps", "seconds"},
    ),
    ("report {run}", {"path", "runs", "bytes"}),
]


@pytest.mark.parametrize(("typed", "fields"), JSON, ids=[typed for typed, _ in JSON])
def test_json_is_one_object_on_stdout(typed, fields, places, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", images)
    words = typed.format(**places, pictures=tmp_path / "pictures.npz").split()
    assert run(*words, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert fields <= json.loads(out).keys()


@pytest.mark.parametrize("typed", [typed for typed, _ in JSON], ids=str)
def test_without_json_people_are_told(typed, places, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", images)
    assert run(*typed.format(**places, pictures=tmp_path / "pictures.npz").split()) == 0
    out = capsys.readouterr().out
    assert out
    assert not out.startswith("{")
