"""What sources of raw arrays share."""

import io

import numpy as np
import pytest

from iddpm.data import scratch
from iddpm.data.frame import Frame
from iddpm.data.scratch import in_scratch, unpacked
from iddpm.data.sources.arrays.arrays import Numbered, Part, array_source, as_labels
from iddpm.runtime.errors import DataError, OutputError


def test_names_are_made_when_they_are_asked_for():
    names = Numbered((("train", 10**9), ("none", 0), ("test", 3)))
    assert len(names) == 10**9 + 3
    assert (names[0], names[10**9 - 1], names[10**9], names[-1]) == (
        "train[0]",
        "train[999999999]",
        "test[0]",
        "test[2]",
    )
    assert names[10**9 - 1 : 10**9 + 1] == ["train[999999999]", "test[0]"]
    assert names[10**9 + 2 :] == ["test[2]"]
    assert list(Numbered(())) == []


@pytest.mark.parametrize("at", [2, -3])
def test_name_that_is_not_there(at):
    with pytest.raises(IndexError):
        Numbered((("train", 2),))[at]


def test_parts_of_different_shapes_are_one_source():
    grey, colour = np.full((2, 4, 4), 7, np.uint8), np.full((1, 6, 4, 3), 9, np.uint8)
    parts = [Part(name="a", pictures=grey, labels=None), Part(name="b", pictures=colour, labels=np.array([1]))]
    source = array_source(parts, source="given", kind="test", fingerprint="")
    pictures = [source.read(place, Frame(size=4)) for place in source.places]
    assert [int(picture.pixels.max()) for picture in pictures] == [7, 7, 9]
    assert (pictures[2].width, pictures[2].height) == (4, 6)
    assert (source.listing.labels, source.listing.classes, source.listing.held_out) == (None, (), None)


def test_full_disk_is_told_in_one_line(monkeypatch):
    def full(folder):
        return open("/dev/full", "r+b", buffering=0)

    monkeypatch.setattr(scratch, "new_scratch", full)
    with pytest.raises(OutputError, match=r"cannot unpack into .*: No space left on device"):
        in_scratch(np.zeros((2, 3), np.uint8), None)
    with pytest.raises(OutputError, match=r"cannot unpack into .*: No space left on device"):
        unpacked(io.BytesIO(b"content"), None)


def test_labels_are_a_flat_list_or_an_array():
    assert as_labels("labels", [1, 0], 2).tolist() == as_labels("labels", np.array([[1], [0]]), 2).tolist() == [1, 0]
    for given in ([[1], [0]], [True, False], [1.0, 0.0], (1, 0), None, "10"):
        with pytest.raises(DataError, match=r"labels is no list of numbers\nallowed: whole numbers \[2\]"):
            as_labels("labels", given, 2)
    with pytest.raises(DataError, match=r"labels is object \[2\]"):
        as_labels("labels", [1 << 80, 0], 2)


def test_lists_that_hold_one_list_twice_take_no_memory():
    nested = [0]
    for _ in range(30):
        nested = [nested, nested]
    with pytest.raises(DataError, match="no list of numbers"):
        as_labels("labels", nested, 2)
