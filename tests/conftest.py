"""What all tests share: quiet threads, a cache of their own, small stores and one small trained run.

Fixtures import what they need when they are used, so that a test of one room does not load them all.
"""

import os
from pathlib import Path

# Before torch looks for devices: what is asserted bit for bit holds on a CPU. The gpu tests ask for theirs.
if "IDDPM_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Path:
    """The cache of prepared stores, for the tests and for every process that they start."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["IDDPM_CACHE"] = str(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    return folder


@pytest.fixture(scope="session")
def digits(cache):
    """The store of 1797 digits, 8x8, grey, ten classes."""
    from iddpm.commands.store import store_for
    from iddpm.experiment.config import DataConfig

    return store_for(DataConfig(source="digits", size=8, channels=1))[0]


@pytest.fixture(scope="session")
def small_digits(digits, tmp_path_factory) -> Path:
    """A store of 40 digits (some held out), for what walks through a whole store."""
    import numpy as np

    from iddpm.data.preparing import prepare

    folder = tmp_path_factory.mktemp("small-digits")
    images = np.repeat(digits.read(slice(0, 40)).transpose(0, 2, 3, 1), 3, axis=3)
    np.savez(folder / "digits.npz", images, digits.labels[:40])
    return prepare(folder / "digits.npz", 8, folder / "store", channels=1).store.path


@pytest.fixture(scope="session")
def trained_config(digits):
    """The config of `trained`."""
    from tiny import tiny_config

    return tiny_config(digits.path, train_steps=8, label_drop=0.2, dropout=0.2, log_every=2, checkpoint_every=3)


@pytest.fixture(scope="session")
def trained(trained_config, tmp_path_factory) -> Path:
    """A run directory: class-conditional digits, trained for 8 steps, guidance possible. Tests only add to it."""
    from iddpm.commands.train import train

    out = tmp_path_factory.mktemp("runs") / "trained"
    train(trained_config, out)
    return out


@pytest.fixture(scope="session")
def upsampler(digits, tmp_path_factory) -> Path:
    """A run directory: enlarges 8x8 digits to 16x16 with their label, trained for 2 steps."""
    from dataclasses import replace

    from iddpm.commands.store import store_for
    from iddpm.commands.train import train
    from iddpm.experiment.config import DataConfig
    from tiny import tiny_config

    config = tiny_config(store_for(DataConfig(source="digits", size=16, channels=1))[0].path, train_steps=2)
    out = tmp_path_factory.mktemp("runs") / "upsampler"
    train(replace(config, data=replace(config.data, size=16, low_res=8)), out)
    return out
