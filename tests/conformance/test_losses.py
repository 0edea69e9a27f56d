"""Every objective's loss and the reverse step, against the original's on the toy network."""

import pytest
import torch

from conformance.reference_files import arrays, assert_agree, toy_denoiser
from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.objective import Hybrid, Simple, Vlb
from iddpm.diffusion.process import q_sample, reverse_step

FILE = {name: torch.from_numpy(array) for name, array in arrays("losses.npz").items()}
OBJECTIVES = {"simple": Simple(), "hybrid": Hybrid(bound_weight="scaled"), "vlb": Vlb()}
NAMES = [name for name in FILE if name.count(".") == 4]


def setting(name):
    """The toy denoiser, the six timesteps, and what is asked of them."""
    schedule, timesteps, which, run, term = name.split(".")
    variance = "learned" if run == "p" else run.split("_")[1]
    t = FILE[f"{schedule}.{timesteps}.{which}"]
    return toy_denoiser(schedule, timesteps, variance), t, run, term


@pytest.mark.parametrize("name", [name for name in NAMES if ".p." not in name])
def test_loss_terms_equal_the_originals(name):
    denoiser, t, run, term = setting(name)
    terms = OBJECTIVES[run.split("_")[0]](denoiser, FILE["x0"], t, FILE["noise"], Cond())
    # The original scales its "vb" to T/1000 of one step; ours is T of it.
    ours = {"loss": terms.loss, "mse": terms.parts["mse"]}
    if "bound" in terms.parts:
        ours["vb"] = terms.parts["bound"] / 1000
    assert_agree(ours[term], FILE[name])


@pytest.mark.parametrize("name", [name for name in NAMES if ".p." in name])
def test_reverse_step_equals_the_originals(name):
    denoiser, t, _, term = setting(name)
    x_t = q_sample(denoiser.schedule, FILE["x0"], t, FILE["noise"])
    prediction = denoiser(x_t, t, Cond())
    p = reverse_step(denoiser.schedule, x_t, t, prediction, clip=True)
    ours = {"mean": p.mean, "log_variance": p.log_variance, "pred_xstart": prediction.x0.clamp(-1, 1)}
    assert_agree(ours[term], FILE[name], atol=1e-12)
