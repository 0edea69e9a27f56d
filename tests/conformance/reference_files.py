"""The reference folder, and the toy network that its numbers were computed with.

`IDDPM_REFERENCE` names another folder with files of the same format; whatever names those files hold are tried.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from iddpm.diffusion.denoiser import NetDenoiser
from iddpm.diffusion.schedule import Cosine, Linear, noise_schedule
from iddpm.diffusion.spacing import SectionSteps, kept, parse_steps

FOLDER = Path(os.environ.get("IDDPM_REFERENCE", Path(__file__).parent / "reference"))

SCHEDULES = {"linear": Linear, "cosine": Cosine}
VARIANCES = {"learned": "learned_range", "fixedlarge": "fixed_large", "fixedsmall": "fixed_small"}


def _present(name):
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"the reference folder has no {name}", allow_module_level=True)
    return path


def arrays(name):
    with np.load(_present(name)) as file:
        return dict(file)


def content(name):
    return json.loads(_present(name).read_text())


def reference_schedule(schedule, timesteps):
    return noise_schedule(SCHEDULES[schedule](timesteps=int(timesteps)), "thousand")


def reference_steps(text, timesteps):
    """Counts alone are sections there, a single count being one section: that matters for `1` only (SMP-13)."""
    spec = SectionSteps(tuple(map(int, text.split(",")))) if text[0].isdigit() else parse_steps(text)
    return kept(spec, int(timesteps))


def toy_net(variance):
    def net(x, time, label, low_res, noise_level):
        tt = time.reshape(-1, 1, 1, 1)
        eps = 0.9 * torch.tanh(0.7 * x + 0.001 * tt)
        v = 0.8 * torch.sin(2 * x + 0.002 * tt)
        return torch.cat([eps, v], dim=1) if variance == "learned_range" else eps

    return net


def toy_denoiser(schedule, timesteps, variance):
    variance = VARIANCES[variance]
    return NetDenoiser(toy_net(variance), reference_schedule(schedule, timesteps), "eps", variance)


def assert_agree(ours, theirs, *, rtol=1e-9, atol=0.0):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=rtol, atol=atol)
