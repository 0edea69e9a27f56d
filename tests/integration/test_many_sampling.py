"""Sampling and measuring in two processes of one job does what one process does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import many_sampling
from iddpm.commands.sample import sample
from iddpm.diffusion.spacing import EvenSteps
from iddpm.runtime.world import World
from many import launched, results
from many_sampling import COUNTS, asked, hooked, measured
from tiny import Lines

pytestmark = pytest.mark.dist
SCRIPT = Path(many_sampling.__file__)
ALONE = World(rank=0, size=1, device=torch.device("cpu"))


def copied(run, place):
    return shutil.copytree(run, place, ignore=shutil.ignore_patterns("samples", "evaluations"))


@pytest.fixture(scope="module")
def runs(trained, upsampler, tmp_path_factory):
    """The run and the upsampler, for one process, with nothing drawn from them."""
    folder = tmp_path_factory.mktemp("one")
    return copied(trained, folder / "run"), copied(upsampler, folder / "up")


class Stopping(Lines):
    def progress(self, task, done, total, detail=""):
        if done > 5:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def job(trained, upsampler, tmp_path_factory):
    """Two processes have sampled and measured; with what they printed."""
    folder = tmp_path_factory.mktemp("job")
    stopped = copied(trained, folder / "stopped")
    with pytest.raises(KeyboardInterrupt):
        sample(stopped, asked(10), listener=Stopping())
    (folder / "kept").write_text(json.dumps(parts(stopped)))
    done = launched(SCRIPT, 2, folder, copied(trained, folder / "run"), copied(upsampler, folder / "up"), stopped)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder, done


@pytest.fixture(scope="module")
def found(job):
    """What each process has found out, by rank."""
    first, second = results(job[0])
    return first, second


def parts(run):
    """The batches that are kept of a sampling that was stopped, and since when."""
    return {file.name: file.stat().st_mtime_ns for file in sorted((run / "samples").glob(".*.parts/[!.]*.npy"))}


def killed(process):
    """Kill torchrun and all that it has started, which it puts into sessions of their own; return once they are dead."""
    if process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in (process.pid, *map(int, children)):
            os.kill(number, signal.SIGKILL)
        process.wait()
        while any(map(alive, children)):
            time.sleep(0.01)


def alive(number):
    stat = Path(f"/proc/{number}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def content(facts):
    return Path(facts["path"], "samples.npz").read_bytes()


@pytest.mark.parametrize("place", range(len(COUNTS)), ids=map(str, COUNTS))
def test_dst_03_exactly_as_many_as_asked_and_the_same_to_the_bit(found, runs, place):
    num = COUNTS[place]
    first, second = (one["counts"][place] for one in found)
    assert first["facts"] == second["facts"]
    assert first["facts"]["processes"] == 2
    assert first["facts"]["num"] == num
    with np.load(Path(first["facts"]["path"], "samples.npz")) as arrays:
        assert len(arrays["arr_0"]) == len(arrays["arr_1"]) == num
    assert content(first["facts"]) == content(sample(runs[0], asked(num)))
    assert sorted(first["written"] + second["written"]) == list(range(-(-num // 4)))
    assert abs(first["ended"] - second["ended"]) < 5


def test_a_second_command_draws_nothing(found):
    for one in found:
        assert one["again"]["facts"]["already_there"]
        assert one["again"]["written"] == []


def test_cascade_is_the_same_to_the_bit(found, runs):
    facts = found[0]["cascade"]["facts"]
    assert content(facts) == content(sample(runs[0], asked(7, batch_size=3), runs[1]))
    assert sorted(found[0]["cascade"]["written"] + found[1]["cascade"]["written"]) == [0, 0, 1, 1, 2, 2]


def test_dst_03_what_one_process_has_begun_two_bring_to_an_end(found, job, runs):
    kept = json.loads((job[0] / "kept").read_text())
    assert len(kept) == 1
    written = found[0]["stopped"]["written"] + found[1]["stopped"]["written"]
    assert sorted(written) == [1, 2]
    assert content(found[0]["stopped"]["facts"]) == content(sample(runs[0], asked(10)))
    assert found[1]["progress"] == []
    counts = [done for _, done, _ in found[0]["progress"]]
    assert counts == sorted(counts)
    assert counts[0] > 4
    assert counts[-1] == 12


def test_dst_03_nothing_is_left_beside_the_results(job):
    assert [file for run in ("run", "up", "stopped") for file in (job[0] / run / "samples").glob(".*")] == []


def test_dst_05_a_slow_process_is_waited_for_and_does_less(found, runs):
    quick, slow = (one["slow"]["written"] for one in found)
    assert len(quick) > 2 * len(slow) > 0
    assert sorted(quick + slow) == list(range(7))
    assert content(found[0]["slow"]["facts"]) == content(sample(runs[0], asked(26, seed=5)))


def test_likelihood_is_the_same_to_the_bit(found, runs):
    timed = ("seconds", "path", "processes", "already_there")
    expected = [{name: value for name, value in one.items() if name not in timed} for one in measured(runs[0])]
    for one in found:
        assert [{name: facts[name] for name in facts if name not in timed} for facts in one["measured"]] == expected
        assert [facts["processes"] for facts in one["measured"]] == [2, 2, 2]


def test_dst_05_hooks_say_the_same_in_all_processes_and_as_in_one(found, job, runs, tmp_path):
    assert found[0]["hooked"] == found[1]["hooked"]
    early = found[0]["hooked"][:2]
    preview, held_out = found[0]["hooked"][2:]
    assert early == [None, None]
    _, _, preview_of_one, held_out_of_one = hooked(ALONE, runs[0], tmp_path)
    assert {**held_out, "seconds": 0} == {**held_out_of_one, "seconds": 0}
    assert preview["path"] == preview_of_one["path"]
    images = []
    for folder in (job[0] / "hooked", tmp_path):
        facts = json.loads((folder / preview["path"] / "samples.json").read_text())
        with np.load(folder / preview["path"] / "samples.npz") as arrays:
            images.append(arrays["arr_0"].astype(int))
    assert facts["kind"] == "preview"
    moved = np.abs(images[0] - images[1])  # batches of 10 and of 16 are not rounded alike
    assert moved.max() <= 1
    assert (moved > 0).mean() <= 0.001


def test_a_hook_that_fails_in_one_process_fails_in_all_and_they_go_on_together(found):
    assert found[0]["failed"] == found[1]["failed"]
    memory, disk, bound = found[0]["failed"]
    assert memory[2] == {"event": "hook_failed", "step": 4, "reason": "no room"}
    assert disk[2] == {"event": "hook_failed", "step": 4, "reason": "the disk is full"}
    assert bound[3] == {"event": "hook_failed", "step": 4, "reason": "no room"}
    assert (memory[3]["event"], disk[3]["event"], bound[2]["event"]) == ("evaluation", "evaluation", "preview")


def test_what_is_refused_is_told_once(found, job):
    assert [one["refused"] for one in found] == [[2, 2], [2, 2]]
    assert job[1].stderr.count("--label nine: the run has no such class") == 1
    assert job[1].stderr.count("is not a run directory") == 1
    assert "Traceback" not in job[1].stderr


def test_dst_03_killed_in_two_processes_it_goes_on_in_one(trained, runs, tmp_path):
    run = copied(trained, tmp_path / "run")
    flags = ["--num", "17", "--steps", "10", "--batch-size", "2", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent.parent / "src"), "OMP_NUM_THREADS": "1"}
    starting = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    process = subprocess.Popen(
        [*starting, "iddpm", "sample", str(run), *flags],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while len(parts(run)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        killed(process)
    kept = parts(run)
    assert 2 <= len(kept) < 9
    told = Lines()
    request = asked(17, steps=EvenSteps(10), batch_size=2)
    facts = sample(run, request, listener=told)
    assert told.progressed[0] == ("sampling", 10 * len(kept) + 1, 10 * 9)
    assert len(told.progressed) == 10 * (9 - len(kept))
    assert content(facts) == content(sample(runs[0], request))
