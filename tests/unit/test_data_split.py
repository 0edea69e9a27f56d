import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iddpm.data.split import count_duplicates, digest, held_out_by_content, with_copies


def digests_of(contents):
    return np.array([digest(bytes([content])) for content in contents], dtype="S16")


def held_out_of(contents, labels=None, origins=None):
    digests = digests_of(contents)
    return held_out_by_content(digests, digests if origins is None else digests_of(origins), labels)


@given(st.lists(st.integers(0, 30), max_size=60), st.randoms(use_true_random=False))
def test_split_is_by_content(contents, shuffled):
    held_out = held_out_of(contents)
    assert sorted(set(held_out.tolist())) == held_out.tolist()
    chosen = {contents[index] for index in held_out}
    assert all((contents[index] in chosen) == (index in set(held_out.tolist())) for index in range(len(contents)))
    assert len(held_out) < max(len(contents), 1)
    order = list(range(len(contents)))
    shuffled.shuffle(order)
    again = held_out_of([contents[index] for index in order])
    sizes = {content: contents.count(content) for content in contents}
    if len(set(sizes.values())) <= 1:  # equal groups: the choice does not depend on the order of the pictures
        assert {contents[order[index]] for index in again} == chosen


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=2, max_size=60))
def test_no_class_loses_its_last_training_picture(pictures):
    contents, labels = zip(*pictures, strict=True)
    labels = np.array(labels)
    held_out = held_out_of(contents, labels)
    assert set(np.delete(labels, held_out).tolist()) == set(labels.tolist())


def test_a_class_of_copies_stays_in_training():
    contents = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4  # DAT-08's folders: four copies in each
    labels = np.repeat([0, 1, 2, 3], 4)
    assert len(held_out_of(contents, labels)) == 0
    assert len(held_out_of(contents)) == 4


@pytest.mark.parametrize(("count", "held"), [(20, 1), (100, 5), (1797, 90), (100_001, 5000)])
def test_five_percent_at_most_5000(count, held):
    many = np.array([digest(number.to_bytes(4, "little")) for number in range(count)], dtype="S16")
    assert len(held_out_by_content(many, many)) == held


@pytest.mark.parametrize(("contents", "expected"), [([], 0), ([1], 0), ([1, 1, 1], 0), ([1, 2], 1)])
def test_few_pictures(contents, expected):
    assert len(held_out_of(contents)) == expected


def test_copies_stay_together_even_where_they_exceed_the_share():
    held_out = held_out_of([1] * 10 + [2] * 30)
    assert held_out.tolist() == list(range(10))
    assert with_copies(digests_of([1, 2, 1]), np.array([0])).tolist() == [0, 2]


def test_the_choice_follows_what_the_source_has_whatever_was_made_of_it():
    origins = list(range(100))
    small = held_out_of([content % 97 for content in origins], origins=origins)
    large = held_out_of([content + 100 for content in origins], origins=origins)
    assert len(set(small.tolist()) & set(large.tolist())) >= 4  # of 5; copies at the small size may join


def test_duplicates_are_counted_beyond_the_first():
    assert count_duplicates(digests_of([1, 1, 2, 3, 3, 3])) == 3
