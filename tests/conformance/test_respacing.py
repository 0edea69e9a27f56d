"""Which indices are kept, against the original's; what it refuses is refused, naming what can be met."""

import pytest

from conformance.reference_files import content, reference_steps
from iddpm.diffusion.spacing import EvenSteps, kept
from iddpm.runtime.errors import ConfigError

FILE = content("respacing.json")


@pytest.mark.parametrize("name", FILE)
def test_kept_indices_equal_the_originals(name):
    timesteps, text = name.split("/")
    if FILE[name] == "error":
        with pytest.raises(ConfigError, match="nearest"):
            reference_steps(text, timesteps)
    else:
        assert list(reference_steps(text, timesteps)) == FILE[name]


@pytest.mark.parametrize("name", [name for name in FILE if name.split("/")[1].isdigit() and FILE[name] != "error"])
def test_even_steps_are_one_section(name):
    timesteps, count = map(int, name.split("/"))
    expected = FILE[name] if count > 1 else [timesteps - 1]
    assert list(kept(EvenSteps(count), timesteps)) == expected
