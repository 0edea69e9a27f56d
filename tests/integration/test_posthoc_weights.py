"""Weights of a width that a run does not track, made from its snapshots, as sampling and likelihood meet them."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from iddpm.commands.draw import SampleRequest
from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.sample import sample
from iddpm.commands.train import train
from iddpm.diffusion.samplers import Ancestral
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.build import InPrecision
from iddpm.experiment.open_run import open_run
from iddpm.runtime.errors import RunError
from tiny import Lines, cut, tiny_config


@pytest.fixture(scope="module")
def tracked(small_digits, tmp_path_factory):
    """40 steps that track three widths, a snapshot every 4, checkpoints at 20 and 40."""
    out = tmp_path_factory.mktemp("runs") / "tracked"
    settings = {"train_steps": 40, "lr": 1e-3, "checkpoint_every": 20, "snapshot_every": 4}
    train(tiny_config(small_digits, ema_widths=(0.05, 0.07, 0.1), **settings), out)
    return out


@pytest.fixture
def run(tracked, tmp_path):
    """The same run, as if it had tracked the widths 0.05 and 0.1 alone."""
    run = shutil.copytree(tracked, tmp_path / "run")
    config = run / "config.json"
    text = config.read_text()
    assert text.count("0.07") == 1
    config.write_text(text.replace("0.07,", ""))
    for snapshot in (run / "averages").iterdir():
        rewrite_without(snapshot, "power-0.07")
    return run


def rewrite_without(folder, group):
    """Take a group out of a checkpoint folder, and out of its manifest."""
    (folder / f"{group}.safetensors").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][f"{group}.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def opened(run, weights, **settings):
    return open_run(run, device=torch.device("cpu"), weights=weights, **settings)


def vector(run, weights, **settings):
    net = opened(run, weights, **settings).denoiser.net
    assert isinstance(net, InPrecision)
    return torch.cat([parameter.flatten() for parameter in net.net.parameters()])


def draw(run, weights):
    request = SampleRequest(num=4, steps=EvenSteps(4), sampler=Ancestral(), batch_size=4, weights=weights)
    facts = sample(run, request, None, Lines())
    with np.load(f"{facts['path']}/samples.npz", allow_pickle=False) as arrays:
        return facts, arrays["arr_0"].astype(int)


# Measured: 0.030 with the snapshots of 20 steps, 0.0035 with those of 40.
@pytest.mark.parametrize(("step", "error"), [(20, 0.05), (40, 0.01)])
def test_width_that_was_not_tracked_is_what_tracking_it_gives(run, tracked, step, error):
    made, true = vector(run, "power-0.07", step=step), vector(tracked, "power-0.07", step=step)
    neighbours = [vector(run, weights, step=step) for weights in ("power-0.05", "power-0.1")]
    between = min(float((true - neighbour).norm()) for neighbour in neighbours)
    assert between > 0
    assert float((made - true).norm()) < error * between


def test_samples_are_drawn_with_a_width_that_was_not_tracked(run, tracked):
    facts, pictures = draw(run, "power-0.07")
    assert facts["path"].endswith("-step40-power0.07")
    assert facts["weights"] == "power-0.07"
    assert np.abs(pictures - draw(tracked, "power-0.07")[1]).max() <= 1
    for weights in ("power-0.05", "power-0.1"):
        assert (pictures != draw(run, weights)[1]).any()


def test_likelihood_is_measured_with_a_width_that_was_not_tracked(run):
    request = LikelihoodRequest(num=2, steps=EvenSteps(3), weights="power-0.08")
    facts = likelihood(run, request, Lines())
    assert facts["weights"] == "power-0.08"
    assert "-power0.08" in facts["path"]


def test_width_that_was_tracked_is_the_group_of_the_checkpoint(run, tracked):
    shutil.rmtree(run / "averages")
    told = Lines()
    assert torch.equal(vector(run, "power-0.10", listener=told), vector(tracked, "power-0.1"))
    assert opened(run, "power-0.10").weights == "power-0.1"
    assert told.lines == []


def test_how_a_width_was_made_is_told(run):
    told = Lines()
    opened(run, "power-0.07", listener=told)
    assert len(told.lines) == 1
    assert re.fullmatch(
        r"power-0.07 is made from 20 averages; its profile over the steps is 0\.\d+% off", told.lines[0]
    )


def test_damaged_snapshot_is_reported_and_done_without(run, tracked):
    cut(run / "averages" / "000000008" / "power-0.05.safetensors")
    (run / "averages" / "000000012" / "manifest.json").unlink()
    told = Lines()
    made = vector(run, "power-0.07", listener=told)
    assert [line.startswith("warning: ") for line in told.lines] == [True, True, False]
    assert "000000008/power-0.05.safetensors is damaged" in told.lines[0]
    assert "without that snapshot" in told.lines[1]
    assert "from 16 averages" in told.lines[2]
    true = vector(tracked, "power-0.07")
    assert float((made - true).norm()) < 0.05 * float((vector(run, "power-0.05") - true).norm())


def test_snapshots_after_the_checkpoint_have_no_part(run):
    made = vector(run, "power-0.07", step=20)
    for snapshot in (run / "averages").iterdir():
        if int(snapshot.name) > 20:
            cut(snapshot / "power-0.1.safetensors")
    told = Lines()
    assert torch.equal(vector(run, "power-0.07", step=20, listener=told), made)
    assert told.lines[-1].startswith("power-0.07 is made from 10 averages")


def test_width_that_cannot_be_made_well_is_refused_with_the_nearest_that_can(run):
    shutil.rmtree(run / "averages")
    with pytest.raises(
        RunError, match=r"power-0.28 at step 40 cannot be made from the 2 averages .*; allowed: 5%"
    ) as refused:
        opened(run, "power-0.28")
    nearest = str(refused.value.fix).split()[5].rstrip(";")
    assert 0.1 < float(nearest.removeprefix("power-")) < 0.28
    assert opened(run, nearest).weights == nearest


@pytest.mark.parametrize(
    "weights", ["power-0", "power-0.3", "power--0.1", "power-nan", "power-wide", "power-", "power"]
)
def test_widths_that_no_run_has_are_refused_with_those_allowed(run, weights):
    with pytest.raises(RunError, match="holds no") as refused:
        opened(run, weights)
    assert "power-0.05, power-0.1; and power-W for any W above 0, at most 0.28" in str(refused.value.fix)


def test_run_without_widths_says_what_it_lacks(trained):
    with pytest.raises(RunError, match=r"holds no 'power-0\.1' weights") as refused:
        opened(trained, "power-0.1")
    assert refused.value.fix == "allowed: ema, model, ema-0.99; power-W where a run has --train.ema-widths"
