"""Samplers and steps as people write them; the only place where their names are text."""

from typing import Literal

from iddpm.diffusion.samplers import Ancestral, Ddim, Sampler
from iddpm.diffusion.spacing import StepsSpec, parse_steps
from iddpm.runtime.errors import ConfigError

__all__ = ["SamplerName", "sampler_of", "stages_of", "steps_of"]

SamplerName = Literal["ancestral", "ddim"]


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


def stages_of(text: str | None, stages: int) -> tuple[StepsSpec | None, StepsSpec | None]:
    """The steps of each stage, "100/27"; one text serves both.

    Raises:
        ConfigError: More stages than there are runs, or steps that cannot be read.
    """
    if text is None:
        return None, None
    parts = text.split("/")
    if len(parts) > stages:
        raise ConfigError(
            f"--steps {text}: {len(parts)} stages for {stages} run", "give steps for each run, apart by '/'"
        )
    specs = [steps_of(part) for part in parts]
    return specs[0], specs[-1]
