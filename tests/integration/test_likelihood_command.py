import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.train import train
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.diffusion.spacing import EvenSteps, ListedSteps
from iddpm.runtime.errors import ConfigError, DataError
from tiny import Lines, tiny_config


@pytest.fixture(scope="module")
def run(small_digits, tmp_path_factory):
    """Trained for 2 steps on the small store."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_config(small_digits, train_steps=2, dropout=0.3), out)
    return out


def measure(run, listener=None, **settings):
    return likelihood(run, LikelihoodRequest(**({"steps": EvenSteps(5)} | settings)), listener or Lines())


def test_total_is_prior_and_terms_and_everything_is_said(run):
    facts = measure(run, steps=None, num=2)
    assert facts["bits_per_dim"] == pytest.approx(
        facts["prior_bits_per_dim"] + sum(facts["terms_bits_per_dim"]), abs=1e-6
    )
    assert facts["decoder_bits_per_dim"] == facts["terms_bits_per_dim"][-1]
    assert (facts["num_images"], facts["num_steps"], facts["chain_steps"]) == (2, 20, 20)
    assert facts["timesteps"] == list(range(19, -1, -1))
    assert len(facts["terms_bits_per_dim"]) == len(facts["mse_by_step"]) == 20
    assert facts["standard_error_bits_per_dim"] > 0
    assert facts["clip_x0"] is True
    assert facts["weights"] == "ema-0.99"
    assert facts["split"] == "held-out"
    assert json.loads(Path(facts["path"]).read_text()) == {
        name: value for name, value in facts.items() if name != "path"
    }


def test_repeated_request_is_answered_from_what_is_there(run):
    first = measure(run, seed=3)
    before = Path(first["path"]).stat().st_mtime_ns
    told = Lines()
    again = measure(run, seed=3, listener=told)
    assert Path(first["path"]).stat().st_mtime_ns == before
    assert "nothing to do" in told.text
    assert again == first | {"already_there": True}


def test_every_held_out_picture_is_measured_once_and_no_other(run, small_digits, monkeypatch):
    store = open_store(small_digits)
    seen = []
    from iddpm.commands import likelihood as command

    evaluate = command.evaluate

    def watching(denoiser, batches, *rest):
        batches = [batches[number] for number in range(len(batches))]
        seen.extend(int(index) for batch in batches for index in batch.index)
        return evaluate(denoiser, batches, *rest)

    monkeypatch.setattr(command, "evaluate", watching)
    facts = measure(run, seed=4, batch_size=3)
    assert sorted(seen) == store.held_out.tolist()
    assert facts["num_images"] == len(store.held_out) > 0


def test_splits_are_different_pictures(run, small_digits):
    store = open_store(small_digits)
    counts = {split: measure(run, split=split)["num_images"] for split in ("held_out", "train", "all")}
    assert counts == {"held_out": len(store.held_out), "train": len(store.train), "all": 40}
    values = {measure(run, split=split)["bits_per_dim"] for split in counts}
    assert len(values) == 3


def test_nll_05_batch_size_changes_nothing(run):
    whole = measure(run, split="train", num=7, batch_size=7)
    for size in (1, 3):
        Path(whole["path"]).unlink()
        parts = measure(run, split="train", num=7, batch_size=size)
        assert parts["bits_per_dim"] == pytest.approx(whole["bits_per_dim"], abs=1e-5)
        assert parts["num_images"] == 7


def test_smp_12_dropout_is_off_while_measuring(run):
    first = measure(run, seed=8)
    Path(first["path"]).unlink()
    assert measure(run, seed=8)["bits_per_dim"] == first["bits_per_dim"]


def test_shorter_chains_have_bounds_of_their_own(run):
    short, long = measure(run, steps=EvenSteps(2)), measure(run, steps=EvenSteps(10))
    assert (short["num_steps"], long["num_steps"]) == (2, 10)
    assert short["timesteps"] == [19, 0]
    assert short["path"] != long["path"]
    listed = measure(run, steps=ListedSteps(tuple(range(20))), num=1)
    assert listed["num_steps"] == 20
    assert len(Path(listed["path"]).name) < 150
    with pytest.raises(ConfigError, match="21"):
        measure(run, steps=EvenSteps(21))


def test_weights_and_checkpoints_have_files_of_their_own(run):
    averaged, raw = measure(run), measure(run, weights="model")
    assert averaged["path"] != raw["path"]
    assert averaged["bits_per_dim"] != raw["bits_per_dim"]


def test_store_that_is_gone_is_told_and_can_be_given(run, small_digits, tmp_path):
    moved = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    journal = moved / "journal.jsonl"
    start = json.loads(journal.read_text().splitlines()[0])
    journal.write_text(json.dumps(start | {"store": str(tmp_path / "gone")}) + "\n")
    with pytest.raises(DataError, match=r"gone is gone") as refused:
        measure(moved)
    assert "--data" in str(refused.value.fix)
    given = measure(moved, data=str(small_digits))
    assert given["bits_per_dim"] == pytest.approx(measure(run)["bits_per_dim"], abs=1e-6)


def test_other_data_is_measured_under_a_name_of_its_own(run, digits):
    other = measure(run, data=str(digits.path), num=2)
    assert "-data" in Path(other["path"]).name
    assert other["content_hash"] == digits.content_hash


def test_data_of_other_classes_or_another_size_is_refused(run, tmp_path):
    images = np.zeros((40, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", images, np.arange(40) % 3)
    store = prepare(tmp_path / "other.npz", 8, tmp_path / "store", channels=1).store
    with pytest.raises(DataError, match="classes"):
        measure(run, data=str(store.path))
    bigger = prepare(tmp_path / "other.npz", 16, tmp_path / "bigger", channels=1).store
    with pytest.raises(DataError, match="size 16"):
        measure(run, data=str(bigger.path))


def test_upsampler_is_measured_given_the_small_pictures(upsampler):
    facts = measure(upsampler, num=2, steps=EvenSteps(3))
    assert np.isfinite(facts["bits_per_dim"])


@pytest.mark.parametrize("wrong", [{"num": 0}, {"batch_size": 0}, {"seed": -1}])
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(ConfigError, match="--" + next(iter(wrong)).replace("_", "-")):
        LikelihoodRequest(**wrong)
