"""The importance sampler's probabilities after a given sequence of updates, against the original's."""

import pytest
import torch

from conformance.reference_files import assert_agree, content
from iddpm.diffusion.timesteps import SecondMoment

FILE = content("second_moment.json")


@pytest.mark.parametrize("after", range(len(FILE["probabilities"])))
def test_probabilities_equal_the_originals(after):
    expected = FILE["probabilities"][after]
    sampler = SecondMoment().build(FILE["num_timesteps"])
    for t, losses in FILE["updates"][: expected["after"]]:
        sampler.update(torch.tensor(t), torch.tensor(losses, dtype=torch.float64))
    assert_agree(sampler.probabilities(), expected["weights"])
