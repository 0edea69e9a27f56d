"""How a net of any side is cut into levels: the default channel multipliers, and which sides divide."""

from iddpm.runtime.errors import ConfigError

__all__ = ["default_multipliers", "level_widths"]

WIDEST_BOTTOM = 16  # a default layout must bring the map down to this: attention in the middle costs width**4

MULTIPLIERS = {
    1: (1,),
    2: (1, 2),
    3: (1, 2, 2),
    4: (1, 2, 3, 4),  # 64x64 [ND21 Sec. 3]
    5: (1, 1, 2, 3, 4),
    6: (1, 1, 2, 2, 4, 4),  # 256x256 [ND21 App. A]
    7: (1, 1, 1, 2, 2, 4, 4),
}


def default_multipliers(size: int) -> tuple[int, ...]:
    """Channel multipliers, finest level first, for a side of `size` pixels.

    The published layouts where there is one (32: 1 2 2 2, 64: 1 2 3 4, 256: 1 1 2 2 4 4). Elsewhere the map is
    halved while it is even and stays at least 5 wide (4 for sides up to 32), and the widths follow the published
    layout of as many levels.

    Raises:
        ConfigError: The side cannot be halved often enough for the coarsest map to be at most 16 wide.
    """
    _check_positive(size)
    narrowest = 4 if size <= 32 else 5
    bottom, levels = size, 1
    while bottom % 2 == 0 and bottom // 2 >= narrowest:
        bottom, levels = bottom // 2, levels + 1
    if bottom > WIDEST_BOTTOM:
        raise _does_not_divide(size, _factor_needed(size))
    if size <= 32 and levels == 4:
        return (1, 2, 2, 2)
    if levels in MULTIPLIERS:
        return MULTIPLIERS[levels]
    return (1,) * (levels - 7) + MULTIPLIERS[7]


def level_widths(size: int, levels: int) -> tuple[int, ...]:
    """Map widths of each level, finest first: the side halved `levels - 1` times.

    Raises:
        ConfigError: The side is not divisible by 2 ** (levels - 1).
    """
    _check_positive(size)
    factor = 2 ** (levels - 1)
    if size % factor:
        raise _does_not_divide(size, factor)
    return tuple(size // 2**level for level in range(levels))


def _factor_needed(size: int) -> int:
    factor = 1
    while size / factor > WIDEST_BOTTOM:
        factor *= 2
    return factor


def _does_not_divide(size: int, factor: int) -> ConfigError:
    below = size // factor * factor
    nearest = [side for side in (below, below + factor) if side > 0]
    halvings = factor.bit_length() - 1
    return ConfigError(
        f"image size {size} does not divide by {factor} ({halvings} halvings of the map); "
        f"allowed: multiples of {factor}, the nearest {' and '.join(map(str, nearest))}",
        f"set the size to {' or '.join(map(str, nearest))}, or give other multipliers: n of them halve n - 1 times",
    )


def _check_positive(size: int) -> None:
    if size < 1:
        raise ConfigError(f"image size {size}: allowed are whole numbers from 1", "give the side in pixels")
