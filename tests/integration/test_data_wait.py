"""How long training waits for data is measured and journalled; where that is much, a warning names the cure."""

import time

import pytest

from iddpm.commands.train import train
from iddpm.data.crop import RandomCrop
from iddpm.data.loader import Batches
from iddpm.data.preparing import prepare
from tiny import Lines, journalled, tiny_config


@pytest.fixture
def slow_batches(monkeypatch):
    made = Batches.at

    def at(self, step, first=0, count=None):
        time.sleep(0.6)  # much longer than a step, on a busy machine too
        return made(self, step, first, count)

    monkeypatch.setattr(Batches, "at", at)


def test_a_slow_loader_is_warned_of_once(digits, tmp_path, slow_batches):
    told = Lines()
    train(tiny_config(digits.path, train_steps=6, log_every=2), tmp_path / "run", listener=told)
    warnings = [line for line in told.lines if "waiting for data" in line]
    assert len(warnings) == 1
    assert "is too slow: copy the store (0.0 GB) to a local one, or to memory" in warnings[0]
    (event,) = journalled(tmp_path / "run", "data_wait")
    assert 0.05 < event["share"] <= 1
    waited = [entry["data_wait_seconds"] for entry in journalled(tmp_path / "run", "step")]
    assert sum(waited) > 0.2
    assert all(
        entry["data_wait_seconds"] <= entry["seconds"]["data"] + 1e-5 for entry in journalled(tmp_path / "run", "step")
    )


def test_a_loader_that_keeps_up_is_not_warned_of(digits, tmp_path):
    told = Lines()
    train(tiny_config(digits.path, train_steps=12, log_every=4), tmp_path / "run", listener=told)
    assert "waiting for data" not in told.text
    assert not journalled(tmp_path / "run", "data_wait")
    assert [entry["data_wait_seconds"] for entry in journalled(tmp_path / "run", "step")] == pytest.approx(
        [0, 0, 0], abs=0.1
    )


def test_the_cure_fits_the_store(small_digits, tmp_path):
    encoded = prepare("digits", 8, tmp_path / "encoded", channels=1, encode_above_bytes=0).store
    assert "prepare it raw" in Batches(encoded, "train", 8, 0).cure
    larger = prepare("digits", 10, tmp_path / "larger", channels=1).store
    assert "random crops" in Batches(larger, "train", 8, 0, size=8, crop=RandomCrop()).cure
