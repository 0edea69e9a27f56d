"""Samplers and steps as people write them; the only place where their names are text."""

from typing import Literal

from iddpm.diffusion.samplers import Ancestral, Ddim, Sampler
from iddpm.diffusion.spacing import StepsSpec, parse_steps
from iddpm.runtime.errors import ConfigError

__all__ = ["STEPS_HELP", "SamplerName", "sampler_of", "steps_of"]

SamplerName = Literal["ancestral", "ddim"]
STEPS_HELP = "100 (evenly spaced), 10,15,20 (by section), ddim50 (the DDIM paper's), at:0,250,999 (these)"


def sampler_of(name: SamplerName, eta: float | None) -> Sampler:
    """The sampler of a name.

    Raises:
        ConfigError: An eta for a sampler that has none.
    """
    match name:
        case "ddim":
            return Ddim(eta=eta or 0.0)
        case "ancestral" if eta is None:
            return Ancestral()
    raise ConfigError(f"--eta {eta}: the {name} sampler has none", "leave it out, or take --sampler ddim")


def steps_of(text: str) -> StepsSpec:
    """The steps of a text; see `iddpm.diffusion.spacing`."""
    return parse_steps(text)
