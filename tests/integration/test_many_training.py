"""Training in two processes of one job does what one process does."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import many_training
from iddpm.artifacts.checkpoint import list_checkpoints
from iddpm.commands.draw import SampleRequest
from iddpm.commands.sample import sample
from iddpm.commands.train import train
from iddpm.diffusion.samplers import Ddim
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.build import DiffusionTask
from many import launched, results
from many_training import config_of, spoilt
from tiny import journalled, losses_of, same, tensors_of

pytestmark = pytest.mark.dist
SCRIPT = Path(many_training.__file__)

# One start of two processes takes seconds, so they do many runs.
PLANS = [
    {"out": "ddp"},
    {"out": "fsdp", "settings": {"parallel": "fsdp"}},
    {"out": "stretches", "settings": {"train_steps": 7}},
    {"out": "stretches"},
    {"out": "fsdp-stretches", "settings": {"train_steps": 7, "parallel": "fsdp"}},
    {"out": "fsdp-stretches", "settings": {"parallel": "fsdp"}},
    {"out": "elsewhere", "settings": {"train_steps": 7}},
    {"out": "uneven", "settings": {"batch_size": 7, "micro_batch_size": 2, "gradient_noise_scale": True}},
    {"out": "fsdp-parts", "settings": {"parallel": "fsdp", "micro_batch_size": 2, "grad_clip": 0.5}},
    {"out": "importance", "settings": {"importance": True, "timesteps": 4, "lr": 1e-4}},
    {"out": "signalled", "signalled": 5},
    {"out": "spoilt", "settings": {"patience": 2}, "spoilt": [11, 12]},
    {"out": "labels", "settings": {"train_steps": 3, "label_drop": 0.5, "dropout": 0.3}},
    {"out": "few", "settings": {"batch_size": 1}},
    {"out": "whole-count", "settings": {"train_steps": 2}, "counted": True},
    {"out": "micro-count", "settings": {"train_steps": 2, "micro_batch_size": 1}, "counted": True},
]
PLACE = {plan["out"]: number for number, plan in enumerate(PLANS)}


@pytest.fixture(scope="module")
def job(digits, tmp_path_factory):
    """The folder that two processes have trained in."""
    folder = tmp_path_factory.mktemp("job")
    done = launched(SCRIPT, 2, digits.path, folder, json.dumps(PLANS))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def found(job):
    """What each process found out, by run."""
    return {name: [result["runs"][place] for result in results(job)] for name, place in PLACE.items()}


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    """Trains a run of one process, once for each setting."""
    folder, known = tmp_path_factory.mktemp("alone"), {}

    def run(**settings) -> Path:
        key = json.dumps(settings, sort_keys=True)
        if key not in known:
            known[key] = folder / str(len(known))
            train(config_of(digits.path, settings), known[key], device="cpu")
        return known[key]

    return run


def apart(run: Path, other: Path, group: str = "model/") -> float:
    one, two = (
        torch.cat([t.double().flatten() for name, t in tensors_of(place).items() if name.startswith(group)])
        for place in (run, other)
    )
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(job, alone, name):
    one = alone()
    assert tensors_of(job / name).keys() == tensors_of(one).keys()
    for group in ("model/", "ema-0.99/"):
        assert apart(job / name, one, group) < 1e-5
    told, expected = losses_of(job / name), losses_of(one)
    assert told[0]["loss"] == pytest.approx(expected[0]["loss"], rel=1e-6)
    assert told[0]["grad_norm"] == pytest.approx(expected[0]["grad_norm"], rel=1e-5)
    assert told[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=1e-4)
    assert told[-1]["loss_by_quartile"] == pytest.approx(expected[-1]["loss_by_quartile"], rel=1e-3)
    (start,) = journalled(job / name, "start")
    assert (start["processes"], start["parallel"]) == (2, name)


def test_ddp_and_fsdp_give_the_same_losses(job):
    one, other = ([entry["loss"] for entry in losses_of(job / name)] for name in ("ddp", "fsdp"))
    assert one == pytest.approx(other, rel=1e-5)


def test_dst_01_processes_draw_other_t_and_together_those_of_one(found, job, digits, tmp_path):
    first, second = (each["drawn"] for each in found["ddp"])
    assert all(one != other for one, other in zip(first, second, strict=True))
    drawn = []
    with patch.object(DiffusionTask, "after_step", lambda _, terms: drawn.append(terms[0].t.tolist())):
        train(config_of(digits.path, {}), tmp_path / "run", device="cpu")
    assert [[*one, *other] for one, other in zip(first, second, strict=True)] == drawn


def test_dst_07_learning_rate_is_that_of_the_step(job, alone):
    assert [entry["lr"] for entry in losses_of(job / "ddp")] == [entry["lr"] for entry in losses_of(alone())]


def test_dst_06_every_parameter_gets_its_gradient_with_labels_hidden_and_dropout(found):
    assert [each["step"] for each in found["labels"]] == [3, 3]


@pytest.mark.parametrize(("name", "whole"), [("stretches", "ddp"), ("fsdp-stretches", "fsdp")])
def test_res_02_two_processes_go_on_to_the_very_bits(job, found, name, whole):
    assert [each["resumed_from"] for each in found["fsdp-stretches"]] == [7, 7]
    assert same(tensors_of(job / name), tensors_of(job / whole))
    assert [entry["loss"] for entry in losses_of(job / name)] == [entry["loss"] for entry in losses_of(job / whole)]


@pytest.fixture(scope="module")
def again(job, digits, tmp_path_factory):
    """The folder of a second job, one of whose processes is killed once; before, it goes on where one process stopped."""
    folder = tmp_path_factory.mktemp("again")
    train(config_of(digits.path, {"train_steps": 13}), job / "elsewhere", device="cpu")
    plans = [{"out": str(job / "elsewhere")}, {"out": "run", "fault": "kill", "at": 12}]
    done = launched(SCRIPT, 2, digits.path, folder, json.dumps(plans), restarts=1)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_two_one_and_two_processes_go_on_from_one_another(job, again, alone):
    run = job / "elsewhere"
    events = journalled(run, "start") + journalled(run, "resume")
    assert [(event["step"], event["processes"]) for event in events[:3]] == [(0, 2), (7, 1), (13, 2)]
    assert apart(run, alone()) < 1e-5


def test_batch_that_does_not_divide_and_micro_batches(job, alone):
    one = alone(batch_size=7, gradient_noise_scale=True)
    assert apart(job / "uneven", one) < 1e-5
    assert all("gradient_noise_scale" in entry for entry in losses_of(job / "uneven"))


def test_fsdp_accumulates_and_clips_as_one_process_does(job, alone):
    assert apart(job / "fsdp-parts", alone(grad_clip=0.5)) < 1e-5


def test_history_of_importance_sampling_is_that_of_one_process(job, alone):
    run, one = job / "importance", alone(importance=True, timesteps=4, lr=1e-4)
    assert apart(run, one) < 1e-5
    there, here = (tensors_of(place)["task/losses"] for place in (run, one))
    torch.testing.assert_close(there, here, rtol=1e-4, atol=0)
    assert torch.equal(*(tensors_of(place)["task/counts"] for place in (run, one)))


def test_a_signal_to_one_process_stops_all_at_one_step_and_saves(job, found):
    assert {(each["step"], each["stopped_by"]) for each in found["signalled"]} == {(6, "SIGTERM")}
    assert [checkpoint.step for checkpoint in list_checkpoints(job / "signalled" / "checkpoints")][-1] == 6


def test_prc_01_nan_in_one_process_sends_all_back_as_one_process_would_go(job, found, digits, tmp_path):
    with patch.object(DiffusionTask, "__call__", spoilt((11, 12))):
        train(config_of(digits.path, {"patience": 2}), tmp_path / "one", device="cpu")
    assert {(each["rollbacks"], each["skipped_steps"]) for each in found["spoilt"]} == {(1, 2)}
    assert [event["to_step"] for event in journalled(job / "spoilt", "rollback")] == [10]
    assert apart(job / "spoilt", tmp_path / "one") < 1e-5


def test_batch_smaller_than_the_processes_is_refused_once(found):
    assert all("batch_size is 1, over 2 processes" in each["error"] for each in found["few"])
    assert [each["is_told_elsewhere"] for each in found["few"]] == [False, True]


def test_accumulation_exchanges_gradients_once_a_step(found):
    assert found["whole-count"] == found["micro-count"]
    assert found["whole-count"][0]["exchanges"] >= 2 * 2


def test_ins_01_several_processes_need_no_mpi(job):
    assert [result["mpi"] for result in results(job)] == [False, False]


def test_sharded_checkpoint_opens_in_one_process_and_samples(job):
    request = SampleRequest(num=2, steps=EvenSteps(3), sampler=Ddim(), device="cpu")
    assert sample(job / "fsdp", request)["num"] == 2


def test_process_that_is_killed_costs_what_followed_the_last_checkpoint(job, again):
    assert [result["runs"][1]["resumed_from"] for result in results(again)] == [10, 10]
    assert same(tensors_of(again / "run"), tensors_of(job / "ddp"))


def test_process_that_hangs_is_named_with_its_phase(digits, tmp_path):
    plan = [{"out": "run", "fault": "hang", "at": 12, "settings": {"hang_seconds": 6}}]
    done = launched(SCRIPT, 2, digits.path, tmp_path, json.dumps(plan))
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("iddpm: rank")]
    assert "rank 1 " in line
    assert "phase 'data' of step 13" in line
    (event,) = journalled(tmp_path / "run", "hang")
    assert (event["rank"], event["phase"], event["silent"]) == (1, "data", False)


@pytest.mark.slow
def test_four_processes_agree_with_one_whole_split_and_both(digits, alone, tmp_path):
    kinds = {"ddp": {}, "fsdp": {"parallel": "fsdp"}, "hsdp": {"parallel": "hsdp"}, "wide": {"batch_size": 6}}
    plans = [{"out": name, "settings": settings} for name, settings in kinds.items()]
    done = launched(SCRIPT, 4, digits.path, tmp_path, json.dumps(plans), seconds=900)
    assert done.returncode == 0, done.stderr[-4000:]
    for name in ("ddp", "fsdp", "hsdp"):
        assert apart(tmp_path / name, alone()) < 1e-5
    assert apart(tmp_path / "wide", alone(batch_size=6)) < 1e-5
