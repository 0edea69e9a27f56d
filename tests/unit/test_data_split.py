import numpy as np
import pytest

from iddpm.data.split import count_duplicates, digest, held_out_by_content, with_copies


def digests_of(*names: object) -> np.ndarray:
    return np.array([digest(str(name).encode()) for name in names], dtype="S16")


@pytest.mark.parametrize(("count", "held"), [(0, 0), (1, 0), (2, 1), (20, 1), (100, 5), (1797, 90), (100_001, 5000)])
def test_five_percent_at_most_5000_at_least_one_of_two(count, held):
    assert len(held_out_by_content(digests_of(*range(count)))) == held


def test_choice_follows_the_pictures_not_their_order():
    names = list(range(100))
    held = {names[place] for place in held_out_by_content(digests_of(*names))}
    turned = names[::-1]
    assert {turned[place] for place in held_out_by_content(digests_of(*turned))} == held


def test_copies_lie_on_one_side():
    names = [number % 30 for number in range(120)]  # four copies of each
    held = held_out_by_content(digests_of(*names))
    sides = {name: {place in held for place in range(120) if names[place] == name} for name in range(30)}
    assert len(held) == 4
    assert all(len(each) == 1 for each in sides.values())


def test_where_every_group_is_too_large_the_smallest_is_held_out():
    names = ["a"] * 9 + ["b"] * 8
    assert held_out_by_content(digests_of(*names)).tolist() == list(range(9, 17))


def test_equal_pictures_cannot_be_split():
    assert len(held_out_by_content(digests_of(*"aaaaaaaaaaaaaaaa"))) == 0


def test_copies_of_held_out_pictures_are_held_out():
    assert with_copies(digests_of(*"abcab"), np.array([3])).tolist() == [0, 3]


def test_duplicates_are_counted():
    assert count_duplicates(digests_of(*"abcaba")) == 3
