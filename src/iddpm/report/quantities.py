"""Numbers as people read them: rounded to what matters, always with their unit."""

import math

__all__ = [
    "Number",
    "bits_per_dim",
    "bytes_of_memory",
    "compact",
    "count",
    "duration",
    "per_image",
    "percent",
    "plain",
    "ratio",
    "significant",
    "with_prefix",
]

Number = float | int

MISSING = "–"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WORDS = ((1e9, "billion"), (1e6, "million"))


def count(value: Number | None) -> str:
    """A whole number with separators: `12,345`."""
    return MISSING if value is None else f"{round(value):,}"


def compact(value: Number | None) -> str:
    """A large count in words: `1.9 million`; up to 99,999 in full."""
    if value is None:
        return MISSING
    for size, word in _WORDS:
        if value >= size:
            return f"{significant(value / size)} {word}"
    return count(value) if value < 100_000 else f"{significant(value / 1e3)} thousand"


def with_prefix(value: Number | None, unit: str) -> str:
    """A decimal prefix: `2.31 GFLOP`."""
    if value is None:
        return MISSING
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{significant(value / size)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def bytes_of_memory(value: Number | None) -> str:
    """`1.4 GiB`, in powers of 1024."""
    if value is None:
        return MISSING
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**exponent:
            return f"{significant(value / 1024**exponent)} {unit}"
    return f"{round(value)} bytes"


def duration(seconds: Number | None) -> str:
    """`0.8 s`, `42 s`, `5 min 40 s`, `3 h 12 min`, `2 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 or seconds == 0 else f"{significant(seconds, 2)} s"
    whole = round(seconds)
    for big, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big:,} {unit} {rest} {smaller}" if rest else f"{whole // big:,} {unit}"
    return f"{whole} s"


def per_image(seconds: Number | None) -> str:
    """`48 ms an image`, `0.31 s an image`."""
    if seconds is None:
        return MISSING
    if seconds < 0.0995:
        return f"{significant(seconds * 1e3, 2)} ms an image"
    return f"{significant(seconds, 2)} s an image" if seconds < 59.5 else f"{duration(seconds)} an image"


def percent(share: Number) -> str:
    """`34%`; one decimal below ten; what is not zero never reads as zero."""
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1%"
    return f"{value:.0f}%" if value >= 9.95 or value == 0 else f"{value:.1f}%"


def ratio(value: Number) -> str:
    """`1.24×`."""
    return f"{significant(value)}×"


def bits_per_dim(value: Number | None, error: Number | None = None) -> str:
    """`3.912 ± 0.021 bits/dim`; the error has two digits and decides how many the value has."""
    if value is None or not math.isfinite(value):
        return MISSING
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:.3f} bits/dim"
    decimals = min(max(1 - math.floor(math.log10(error)), 2), 6)
    return f"{value:.{decimals}f} ± {error:.{decimals}f} bits/dim"


def significant(value: Number, digits: int = 3) -> str:
    """The value to so many digits, never in exponent form, without a useless `.0`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    decimals = max(digits - 1 - exponent, 0)
    rounded = round(value, digits - 1 - exponent)
    return f"{rounded:,.{decimals}f}"


def plain(value: Number | None, digits: int = 4) -> str:
    """A loss or a norm in a table: digits as they are, exponent form where they would be mostly zeros."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{digits - 2}e}"
    return significant(value, digits)
