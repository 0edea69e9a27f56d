import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from iddpm.commands.draw import SampleRequest, drawing, sample_key, steps_of
from iddpm.commands.sample import sample
from iddpm.commands.train import train
from iddpm.diffusion.samplers import Ancestral, Ddim
from iddpm.diffusion.spacing import EvenSteps, ListedSteps, SectionSteps
from iddpm.experiment.open_run import open_run
from iddpm.runtime.errors import ConfigError, RunError
from tiny import Lines, cut, tiny_config


@pytest.fixture(scope="module")
def long_chain(small_digits, tmp_path_factory):
    """Cosine, T = 400, learned variance, no labels hidden: 5 steps of training."""
    out = tmp_path_factory.mktemp("runs") / "long"
    train(tiny_config(small_digits, timesteps=400, train_steps=5), out)
    return out


def request(num=4, **settings):
    return SampleRequest(**({"num": num, "steps": EvenSteps(4), "sampler": Ancestral(), "batch_size": 4} | settings))


def opened(run, **settings):
    return open_run(run, device=torch.device("cpu"), **settings)


def draw(run, num=4, up=None, listener=None, **settings):
    facts = sample(run, request(num, **settings), up, listener or Lines())
    with np.load(f"{facts['path']}/samples.npz", allow_pickle=False) as arrays:
        return facts, dict(arrays)


def test_samples_are_as_many_as_asked_and_in_the_published_form(trained):
    facts, arrays = draw(trained, 6)
    assert set(arrays) == {"arr_0", "arr_1"}
    assert arrays["arr_0"].shape == (6, 8, 8, 1)
    assert arrays["arr_0"].dtype == np.uint8
    assert arrays["arr_1"].tolist() == [0, 1, 2, 3, 4, 5]
    assert facts["num"] == 6
    assert facts["timesteps"] == [0, 6, 13, 19]
    assert facts["seconds_per_image"] > 0
    folder = trained / "samples" / "ancestral-4-seed0-n6-step8-ema0.99"
    assert facts["path"] == str(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["grid.png", "samples.json", "samples.npz"]
    assert json.loads((folder / "samples.json").read_text())["settings"].startswith("cosine schedule, T=20")


def test_repeated_request_is_answered_from_what_is_there(trained):
    first, _ = draw(trained, 2, seed=11)
    file = trained / "samples" / "ancestral-4-seed11-n2-step8-ema0.99" / "samples.npz"
    before = file.stat().st_mtime_ns
    told = Lines()
    again, _ = draw(trained, 2, seed=11, listener=told)
    assert file.stat().st_mtime_ns == before
    assert "nothing to do" in told.lines[-1]
    assert again.pop("already_there")
    assert again == first


@pytest.mark.parametrize("sampler", [Ancestral(), Ddim(eta=1.0)])
def test_picture_is_a_function_of_seed_and_index(trained, sampler):
    _, many = draw(trained, 20, sampler=sampler)
    _, few = draw(trained, 3, sampler=sampler)
    assert (many["arr_0"][:3] == few["arr_0"]).all()
    assert (draw(trained, 3, sampler=sampler, seed=1)[1]["arr_0"] != few["arr_0"]).any()


def test_batch_size_hardly_changes_a_picture(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    _, whole = draw(run, 12, batch_size=12)
    shutil.rmtree(run / "samples")
    _, parts = draw(run, 12, batch_size=5)
    moved = np.abs(whole["arr_0"].astype(int) - parts["arr_0"].astype(int))
    assert moved.max() <= 1
    assert (moved > 0).mean() <= 0.001


def test_smp_12_dropout_is_off_while_sampling(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    pictures = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        pictures.append(draw(run)[1]["arr_0"])
        shutil.rmtree(run / "samples")
    assert (pictures[0] == pictures[1]).all()
    assert not any(module.training for module in opened(run).denoiser.net.net.modules())


def test_smp_08_sampling_takes_its_settings_from_the_run_and_says_them(long_chain):
    told = Lines()
    facts, _ = draw(long_chain, listener=told)
    assert "cosine" in told.text
    assert "T=400" in told.text
    assert "learned_range" in told.text
    assert "4 of 400 indices, from 399 to 0" in told.text
    assert facts["timesteps"] == [0, 133, 266, 399]


def test_steps_are_100_or_the_whole_chain_unless_asked_for(trained, long_chain):
    assert draw(trained, 1, steps=None)[0]["steps"] == 20
    assert steps_of(opened(long_chain), request(steps=None)) == EvenSteps(100)
    assert sample_key(opened(long_chain), request(steps=None)) == sample_key(
        opened(long_chain), request(steps=EvenSteps(100))
    )


def test_smp_08_more_steps_than_were_trained_are_refused(long_chain):
    before = sorted((long_chain / "samples").rglob("*")) if (long_chain / "samples").exists() else []
    with pytest.raises(ConfigError, match="401") as refused:
        draw(long_chain, steps=EvenSteps(401))
    assert "400" in str(refused.value)
    assert (sorted((long_chain / "samples").rglob("*")) if (long_chain / "samples").exists() else []) == before


def test_label_asked_for_is_the_label_of_all(trained):
    facts, arrays = draw(trained, 3, label="7")
    assert arrays["arr_1"].tolist() == [7, 7, 7]
    assert "label7" in facts["path"]
    _, other = draw(trained, 3, label="2")
    assert (other["arr_0"] != arrays["arr_0"]).any()


def test_label_that_is_not_there_is_refused(trained):
    for label in ("10", "-1", "seven"):
        with pytest.raises(ConfigError, match=f"--label {label}"):
            draw(trained, label=label)


def test_guidance_changes_the_pictures_and_1_is_none(trained):
    _, plain = draw(trained)
    _, guided = draw(trained, guidance=3.0)
    assert (plain["arr_0"] != guided["arr_0"]).any()
    assert not [folder for folder in (trained / "samples").iterdir() if "guidance1" in folder.name]


def test_guidance_without_hidden_labels_in_training_is_refused(long_chain, small_digits, tmp_path):
    with pytest.raises(ConfigError, match=r"--guidance .*label_drop 0"):
        draw(long_chain, guidance=2.0)
    config = tiny_config(small_digits, train_steps=1)
    train(replace(config, data=replace(config.data, classes=None)), tmp_path / "plain")
    with pytest.raises(ConfigError, match="without classes"):
        draw(tmp_path / "plain", guidance=2.0)
    assert list(draw(tmp_path / "plain")[1]) == ["arr_0"]


def test_weights_are_those_asked_for(trained):
    pictures = {weights: draw(trained, weights=weights) for weights in ("ema", "ema-0.99", "model")}
    assert pictures["ema"][0]["path"] == pictures["ema-0.99"][0]["path"]
    assert (pictures["ema"][1]["arr_0"] != pictures["model"][1]["arr_0"]).any()
    assert pictures["model"][0]["weights"] == "model"


@pytest.mark.parametrize("weights", ["ema-0.5", "optimizer", "task", "best"])
def test_weights_that_are_not_there_name_those_that_are(trained, weights):
    with pytest.raises(RunError, match=f"no '{weights}' weights") as refused:
        draw(trained, weights=weights)
    assert "ema-0.99" in str(refused.value.fix)
    assert "optimizer" not in str(refused.value.fix)


def test_checkpoint_is_the_one_asked_for(trained):
    facts, early = draw(trained, step=3)
    assert facts["train_step"] == 3
    assert (draw(trained)[1]["arr_0"] != early["arr_0"]).any()
    with pytest.raises(RunError, match="no checkpoint of step 5"):
        draw(trained, step=5)


def test_requests_that_differ_have_folders_that_differ(trained):
    requests = [
        {}, {"sampler": Ddim()}, {"sampler": Ddim(eta=0.5)}, {"steps": EvenSteps(1)}, {"steps": SectionSteps((2, 1))},
        {"steps": ListedSteps((0, 9, 19))}, {"steps": ListedSteps(tuple(range(20)))}, {"steps": ListedSteps(tuple(range(19)))},
        {"seed": 1}, {"num": 5}, {"label": "1"}, {"guidance": 2.0},
    ]  # fmt: skip
    keys = [sample_key(opened(trained), request(**settings)) for settings in requests]
    keys += [sample_key(opened(trained, weights="model"), request()), sample_key(opened(trained, step=3), request())]
    keys.append(sample_key(opened(trained, precision="bf16"), request()))
    assert len(set(keys)) == len(requests) + 3
    assert all(re.fullmatch(r"[a-z0-9._-]{1,120}", key) for key in keys)


def test_cut_checkpoint_is_told_and_the_one_before_used(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    cut(run / "checkpoints" / "000000008" / "ema-0.99.safetensors")
    told = Lines()
    facts, _ = draw(run, listener=told)
    assert facts["train_step"] == 6
    assert told.lines[0].startswith("warning: ")
    assert "000000008" in told.lines[0]
    for step in (3, 6):
        cut(run / "checkpoints" / f"{step:09d}" / "model.safetensors")
    with pytest.raises(RunError, match="whole"):
        draw(run)


def test_checkpoint_that_does_not_fit_the_config_is_refused(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    config = json.loads((run / "config.json").read_text())
    config["net"]["blocks"] = 2
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="does not fit") as refused:
        draw(run)
    assert "\n" not in refused.value.what
    assert len(refused.value.what) < 600


def test_upsampler_enlarges_what_a_run_draws(trained, upsampler):
    facts, arrays = draw(trained, 3, up=upsampler)
    assert arrays["arr_0"].shape == (3, 16, 16, 1)
    assert arrays["arr_1"].tolist() == [0, 1, 2]
    assert facts["path"].startswith(str(upsampler / "samples"))
    assert "trained" in facts["path"]
    told = Lines()
    assert draw(trained, 3, up=upsampler, listener=told)[0]["already_there"]


def test_upsampler_is_given_the_pictures_and_noise_of_its_own(trained, upsampler, monkeypatch):
    orders = []

    def grey(denoiser, sampler, order, numbers, world, keep, listener):
        orders.append(order)
        for number in numbers:
            rows = order.rows(number)
            keep(number, np.full((rows.stop - rows.start, *order.shape[1:], order.shape[0]), 7, dtype=np.uint8))

    monkeypatch.setattr("iddpm.commands.sample.draw_batches", grey)
    draw(trained, 3, up=upsampler, seed=99, batch_size=2)
    assert orders[0].low_res is None
    assert (orders[1].low_res == 7).all()
    assert orders[1].low_res.shape == (3, 1, 8, 8)
    assert orders[0].seed == 99
    assert orders[1].seed not in (0, 99)


def test_pair_that_does_not_fit_is_refused(trained, upsampler):
    with pytest.raises(ConfigError, match=r"None pixels"):
        draw(trained, up=trained)
    with pytest.raises(ConfigError, match="fit"):
        draw(upsampler, up=upsampler)


def test_lone_upsampler_is_refused_with_what_to_do(upsampler):
    with pytest.raises(ConfigError, match="upsampler") as refused:
        draw(upsampler)
    assert f"iddpm sample RUN {upsampler}" in str(refused.value.fix)


@pytest.mark.parametrize(
    "wrong", [{"num": 0}, {"num": -1}, {"seed": -1}, {"seed": 2**63}, {"batch_size": 0}, {"guidance": float("nan")}]
)
def test_impossible_requests_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match="--" + next(iter(wrong)).replace("_", "-")):
        request(**wrong)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        draw(tmp_path / "missing")
    with pytest.raises(RunError, match="not a run directory"):
        draw(tmp_path)


class Stopping(Lines):
    """A listener that ends the work after so many steps, as a kill would."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def progress(self, task, done, total, detail=""):
        super().progress(task, done, total, detail)
        if len(self.progressed) > self.steps:
            raise KeyboardInterrupt


def hidden(run):
    return sorted(path.name for path in (run / "samples").iterdir() if path.name.startswith("."))


def test_dst_03_sampling_that_was_stopped_goes_on_where_it_was(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    whole = draw(run, 10)[0]["path"]
    expected = Path(whole, "samples.npz").read_bytes()
    shutil.rmtree(run / "samples")
    with pytest.raises(KeyboardInterrupt):
        draw(run, 10, listener=Stopping(4 * 2 + 1))  # in the last of three batches
    (folder,) = hidden(run)
    kept = {file.name: file.stat().st_mtime_ns for file in (run / "samples" / folder).iterdir()}
    assert len(kept) == 2
    told = Lines()
    facts, _ = draw(run, 10, listener=told)
    assert told.progressed == [("sampling", done, 12) for done in (9, 10, 11, 12)]
    assert "2 of 3 batches were drawn before" in told.text
    assert Path(facts["path"], "samples.npz").read_bytes() == expected
    assert facts["seconds_per_image"] == pytest.approx(facts["seconds"] / 2, rel=1e-2)
    assert hidden(run) == []


def test_batches_of_another_batch_size_are_not_gone_on_with(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    with pytest.raises(KeyboardInterrupt):
        draw(run, 10, listener=Stopping(9))
    told = Lines()
    draw(run, 10, listener=told, batch_size=5)
    assert told.progressed[0] == ("sampling", 1, 8)
    assert hidden(run) == []


def test_what_decides_the_pictures_says_the_weights_themselves(trained):
    run = opened(trained)
    before = drawing(run, request()).identity()
    assert drawing(opened(trained), request()).identity() == before
    with torch.no_grad():
        next(run.denoiser.net.net.parameters()).view(-1)[0] += 1e-3
    assert drawing(run, request()).identity() != before
    for other in ({"seed": 1}, {"label": "1"}, {"guidance": 2.0}, {"batch_size": 3}, {"sampler": Ddim(eta=0.5)}):
        assert drawing(opened(trained), request(**other)).identity() != before


def test_dst_03_cascade_that_was_stopped_goes_on_in_its_stage(trained, upsampler, tmp_path):
    up = shutil.copytree(upsampler, tmp_path / "up", ignore=shutil.ignore_patterns("samples"))
    expected = draw(trained, 6, up=up)[1]["arr_0"]
    shutil.rmtree(up / "samples")
    with pytest.raises(KeyboardInterrupt):
        draw(trained, 6, up=up, listener=Stopping(2 * 4 + 5))  # one batch of the second stage is done
    told = Lines()
    assert (draw(trained, 6, up=up, listener=told)[1]["arr_0"] == expected).all()
    assert told.progressed == [("sampling", done, 8) for done in (5, 6, 7, 8)]
    assert hidden(up) == []


def test_the_same_command_at_the_same_time_waits_and_draws_nothing(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("samples"))
    with ThreadPoolExecutor(2) as threads:
        told = [Lines(), Lines()]
        facts = [facts for facts, _ in threads.map(lambda lines: draw(run, 10, listener=lines), told)]
    assert sorted(one.get("already_there", False) for one in facts) == [False, True]
    assert sorted(len(lines.progressed) for lines in told) == [0, 12]
    assert [path.name for path in (run / "samples").iterdir()] == [Path(facts[0]["path"]).name]
