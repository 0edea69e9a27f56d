import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iddpm.data.names import Names, one_line, printable, printable_names

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=20)


@given(TEXTS)
def test_names_are_a_sequence_of_texts(texts):
    names = Names(iter(texts))
    assert len(names) == len(texts)
    assert list(names) == texts
    assert names[2:7] == texts[2:7]
    assert names[::-2] == texts[::-2]
    assert names == Names(texts)
    assert pickle.loads(pickle.dumps(names)) == names
    if texts:
        assert names[-1] == texts[-1]


def test_an_index_outside_is_refused():
    with pytest.raises(IndexError):
        Names(["a"])[1]
    with pytest.raises(IndexError):
        Names([])[-1]


def test_names_that_are_not_utf_8_survive():
    raw = os.fsdecode(b"caf\xe9.png")
    assert os.fsencode(Names([raw])[0]) == b"caf\xe9.png"


def test_a_million_names_take_little_memory():
    names = Names(f"n01440764/n01440764_{number}.JPEG" for number in range(10_000))
    assert len(names._block) + names._ends.itemsize * len(names._ends) < 10_000 * 45


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("K\u00e4se 1.png", "K\u00e4se 1.png"),
        ("a\nb\x1b[31m.png", r"a\nb\x1b[31m.png"),
        (os.fsdecode(b"caf\xe9.png"), r"caf\xe9.png"),
        ("\u202egnp.a", r"\u202egnp.a"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_shown_of_a_name_is_one_line_that_can_be_written(name, shown):
    assert printable(name) == shown
    assert printable(shown) == shown
    shown.encode()


@given(st.text())
def test_whatever_a_name_is_it_can_be_shown(name):
    assert printable(name).isprintable()
    assert one_line(name).isprintable()


def test_names_that_can_be_shown_are_not_copied():
    names = Names(["a.png", "b.png"])
    assert printable_names(names) is names
    assert list(printable_names(Names(["a.png", "\x1b.png"]))) == ["a.png", r"\x1b.png"]
