"""Numbers as people read them."""

import math

import pytest

from iddpm.report import quantities as q


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.8, "0.80 s"),
        (9.949, "9.9 s"),
        (42.4, "42 s"),
        (59.49, "59 s"),
        (59.5, "1 min"),
        (340, "5 min 40 s"),
        (3600, "1 h"),
        (11_520, "3 h 12 min"),
        (187_200, "2 d 4 h"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_duration(seconds, text):
    assert q.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (3.91234, 0.0211, "3.912 ± 0.021 bits/dim"),
        (3.91234, 0.31, "3.91 ± 0.31 bits/dim"),
        (3.91234, 0.00142, "3.9123 ± 0.0014 bits/dim"),
        (3.91234, None, "3.912 bits/dim"),
        (3.91234, math.nan, "3.912 bits/dim"),
        (None, 0.1, "–"),
    ],
)
def test_the_error_decides_the_digits_of_bits_per_dim(value, error, text):
    assert q.bits_per_dim(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"), [(39.736e9, "39.7 GMAC"), (999_600, "1,000 kMAC"), (7.0, "7.00 MAC"), (1.2e13, "12.0 TMAC")]
)
def test_with_prefix(value, text):
    assert q.with_prefix(value, "MAC") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_912_646, "1.91 million"), (121_064_000, "121 million"), (99_999, "99,999"), (1.5e9, "1.50 billion")],
)
def test_compact(value, text):
    assert q.compact(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.00098765, 3, "0.000988"), (9.999, 3, "10.0"), (1234.5, 3, "1,230"), (-0.5, 2, "-0.50"), (0, 3, "0")],
)
def test_significant_digits_without_exponent(value, digits, text):
    assert q.significant(value, digits) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.048, "48 ms an image"), (0.314, "0.31 s an image"), (90, "1 min 30 s an image")]
)
def test_per_image(seconds, text):
    assert q.per_image(seconds) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0%"), (0.0004, "<0.1%"), (0.0333, "3.3%"), (0.5149, "51%")])
def test_a_share_above_zero_never_reads_as_zero(share, text):
    assert q.percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.4 * 2**30, "1.40 GiB"), (2048, "2.00 KiB"), (12, "12 bytes"), (None, "–")]
)
def test_bytes_of_memory(value, text):
    assert q.bytes_of_memory(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.1235"), (0.00001234, "1.23e-05"), (math.inf, "–"), (0.0, "0")]
)
def test_plain(value, text):
    assert q.plain(value) == text
