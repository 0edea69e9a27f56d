"""Which indices of the original chain a respaced chain keeps [ND21 Sec. 4].

A spec says how many steps, or which; `kept` turns it into increasing indices of a chain of T steps. As text:

| text | spec | kept of T = 1000 |
|---|---|---|
| `100` | `EvenSteps(100)` | 100 from 0 to 999, both included; `1` is one jump from 999 |
| `10,15,20` | `SectionSteps((10, 15, 20))` | so many in each third, nearest to data first |
| `ddim50` | `DdimSteps(50)` | 0, 20, ..., 980: a whole stride from 0, so 999 is not visited |
| `at:0,250,999` | `ListedSteps((0, 250, 999))` | these |

A request that cannot be met is refused with the nearest that can; it is never met with another number of steps.
"""

from dataclasses import dataclass
from itertools import accumulate, repeat

from iddpm.runtime.errors import ConfigError

__all__ = ["DdimSteps", "EvenSteps", "ListedSteps", "SectionSteps", "StepsSpec", "kept", "parse_steps"]

FORMS = "write N (100), counts by section (10,15,20), ddimN (ddim50) or a list (at:0,250,999)"


@dataclass(frozen=True)
class EvenSteps:
    """`count` steps, evenly from the first index to the last; a single one is the last."""

    count: int

    def __post_init__(self):
        _require_count(self.count, str(self))

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True)
class SectionSteps:
    """The chain cut into as many sections as there are counts, each spaced evenly by itself."""

    counts: tuple[int, ...]

    def __post_init__(self):
        if min(self.counts, default=0) < 0 or sum(self.counts) < 1:
            nearest = [max(count, 0) for count in self.counts]
            nearest = nearest if sum(nearest) else [1] * max(len(nearest), 1)
            raise ConfigError(
                f"steps {str(self)!r}: counts of a section are 0 or more, and 1 or more together",
                f"the nearest that can be met is {_joined(nearest)!r}",
            )

    def __str__(self) -> str:
        return _joined(self.counts)


@dataclass(frozen=True)
class DdimSteps:
    """`count` steps at an integer stride from index 0, as in the DDIM paper's own spacing [S20 Sec. D.2]."""

    count: int

    def __post_init__(self):
        _require_count(self.count, str(self))

    def __str__(self) -> str:
        return f"ddim{self.count}"


@dataclass(frozen=True)
class ListedSteps:
    """Exactly these indices, in any order."""

    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"at:{_joined(self.indices)}"


StepsSpec = EvenSteps | SectionSteps | DdimSteps | ListedSteps


def parse_steps(text: str) -> StepsSpec:
    """The spec that a text stands for; `str(spec)` is its inverse.

    Raises:
        ConfigError: The text is none of the four forms, or asks for fewer than one step.
    """
    text = text.strip()
    try:
        if text.startswith("ddim"):
            return DdimSteps(int(text.removeprefix("ddim")))
        if text.startswith("at:"):
            return ListedSteps(_integers(text.removeprefix("at:")))
        return SectionSteps(_integers(text)) if "," in text else EvenSteps(int(text))
    except ValueError:
        raise ConfigError(f"steps {text!r}: not a number of steps", FORMS) from None


def kept(spec: StepsSpec, timesteps: int) -> tuple[int, ...]:
    """The indices of a chain of `timesteps` steps that `spec` keeps, increasing.

    Raises:
        ConfigError: The chain cannot meet the request; the message names the nearest that it can.
    """
    match spec:
        case EvenSteps(count):
            if count > timesteps:
                raise _refused(spec, timesteps, f"the chain has {timesteps}", EvenSteps(timesteps))
            return _evenly(timesteps, count) if count > 1 else (timesteps - 1,)
        case SectionSteps(counts):
            return _by_section(spec, counts, timesteps)
        case DdimSteps(count):
            return _by_stride(spec, count, timesteps)
        case ListedSteps(indices):
            return _listed(spec, indices, timesteps)


def _evenly(size: int, count: int) -> tuple[int, ...]:
    """`count` of `size` positions: a float64 stride added up, each rounded half to even, as published."""
    stride = (size - 1) / (count - 1) if count > 1 else 1.0
    return tuple(round(position) for position in accumulate(repeat(stride, count - 1), initial=0.0))


def _section_sizes(timesteps: int, sections: int) -> list[int]:
    size, longer = divmod(timesteps, sections)
    return [size + (section < longer) for section in range(sections)]


def _by_section(spec: SectionSteps, counts: tuple[int, ...], timesteps: int) -> tuple[int, ...]:
    sizes = _section_sizes(timesteps, len(counts))
    if any(count > size for count, size in zip(counts, sizes, strict=True)):
        nearest = SectionSteps(tuple(map(min, counts, sizes)))
        raise _refused(spec, timesteps, f"its sections have {_joined(sizes)}", nearest)
    starts = accumulate(sizes, initial=0)
    return tuple(
        start + position
        for start, size, count in zip(starts, sizes, counts, strict=False)
        if count
        for position in _evenly(size, count)
    )


def _by_stride(spec: DdimSteps, count: int, timesteps: int) -> tuple[int, ...]:
    counts = {stride: len(range(0, timesteps, stride)) for stride in range(1, max(timesteps, 2))}
    for stride, reached in counts.items():
        if reached == count:
            return tuple(range(0, timesteps, stride))
    nearest = min(counts.values(), key=lambda reached: abs(reached - count))
    raise _refused(spec, timesteps, "no integer stride gives that many", DdimSteps(nearest))


def _listed(spec: ListedSteps, indices: tuple[int, ...], timesteps: int) -> tuple[int, ...]:
    within = {min(max(index, 0), timesteps - 1) for index in indices} or {timesteps - 1}
    if len(within) < len(indices) or within != set(indices):
        allowed = f"each of 0 to {timesteps - 1} can be kept once"
        raise _refused(spec, timesteps, allowed, ListedSteps(tuple(sorted(within))))
    return tuple(sorted(within))


def _refused(spec: StepsSpec, timesteps: int, because: str, nearest: StepsSpec) -> ConfigError:
    return ConfigError(
        f"steps {str(spec)!r} of a chain of {timesteps}: {because}",
        f"the nearest that can be met is {str(nearest)!r}",
    )


def _require_count(count: int, text: str) -> None:
    if count < 1:
        raise ConfigError(f"steps {text!r}: at least one step is needed", "the nearest that can be met is 1 step")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _joined(numbers: list[int] | tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
