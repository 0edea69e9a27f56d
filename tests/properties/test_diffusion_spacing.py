"""What holds for every request for steps."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iddpm.diffusion.spacing import DdimSteps, EvenSteps, ListedSteps, SectionSteps, kept, parse_steps
from iddpm.runtime.errors import ConfigError
from strategies import text_specs


@given(text_specs)
def test_a_spec_is_its_text(spec):
    assert parse_steps(str(spec)) == spec


@given(text_specs, st.integers(1, 2000))
def test_a_request_is_met_exactly_or_refused_with_one_that_is(spec, timesteps):
    try:
        keep = kept(spec, timesteps)
    except ConfigError as error:
        nearest = parse_steps(ast.literal_eval(error.fix.rsplit(" is ", 1)[1]))
        assert type(nearest) is type(spec)
        keep, spec = kept(nearest, timesteps), nearest
    assert list(keep) == sorted(set(keep))
    assert 0 <= keep[0] <= keep[-1] < timesteps
    match spec:
        case EvenSteps(count) | DdimSteps(count):
            assert len(keep) == count
        case SectionSteps(counts):
            assert len(keep) == sum(counts)
        case ListedSteps(indices):
            assert set(keep) == set(indices)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(100, 1000))
def test_each_section_is_spaced_evenly_from_its_first_index_to_its_last(counts, timesteps):
    keep = kept(SectionSteps(tuple(counts)), timesteps)
    start = 0
    for section, count in enumerate(counts):
        size = timesteps // len(counts) + (section < timesteps % len(counts))
        inside = [index - start for index in keep if start <= index < start + size]
        assert len(inside) == count
        assert inside[0] == 0
        if count > 1:
            assert inside[-1] == size - 1
            ideal = [k * (size - 1) / (count - 1) for k in range(count)]
            assert max(abs(a - b) for a, b in zip(inside, ideal, strict=True)) <= 0.5 + 1e-6
        start += size


@given(st.integers(2, 1000), st.integers(1, 999))
def test_ddim_steps_are_a_stride_from_0(timesteps, stride):
    stride = min(stride, timesteps - 1)
    expected = range(0, timesteps, stride)
    smallest = next(s for s in range(1, timesteps) if len(range(0, timesteps, s)) == len(expected))
    assert kept(DdimSteps(len(expected)), timesteps) == tuple(range(0, timesteps, smallest))


def test_listed_steps_may_come_in_any_order():
    assert kept(ListedSteps((999, 0, 250)), 1000) == (0, 250, 999)


@pytest.mark.parametrize("text", ["ddim50", "10,15,20", "at:0,5", "  100 "])
def test_texts_are_read_by_their_form(text):
    kind = {"d": DdimSteps, "a": ListedSteps}.get(text[0], SectionSteps if "," in text else EvenSteps)
    assert type(parse_steps(text)) is kind
