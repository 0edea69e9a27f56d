"""Colours that can be read: contrast with the page, and apart from one another for colour-blind readers."""

import itertools

import numpy as np
import pytest

from iddpm.report.palette import DASHES, ORDERED, PHASES, ROLES, SERIES

# Machado, Oliveira, Fernandes 2009: full protan, deutan and tritan deficiency, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("role", ["ink", "quiet", "link", "warn", *SERIES, *sorted(set(PHASES.values()))])
def test_text_and_words_on_bars_have_the_contrast_that_text_needs(role, theme):
    assert contrast(getattr(ROLES[role], theme), getattr(ROLES["page"], theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("role", ["ink", "quiet"])
def test_text_can_be_read_on_a_raised_ground(role, theme):
    assert contrast(getattr(ROLES[role], theme), getattr(ROLES["raised"], theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("role", ORDERED)
def test_lines_have_the_contrast_that_graphics_need(role, theme):
    assert contrast(getattr(ROLES[role], theme), getattr(ROLES["page"], theme)) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", DEFICIENCIES)
@pytest.mark.parametrize("roles", [SERIES[:4], ORDERED])
def test_lines_of_one_chart_are_told_apart(roles, kind, theme):
    seen = [lab(np.array(DEFICIENCIES[kind]) @ linear(getattr(ROLES[role], theme))) for role in roles]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14


def test_every_series_has_a_dash_of_its_own():
    assert len(set(DASHES)) == len(DASHES) >= max(len(SERIES), len(ORDERED))
