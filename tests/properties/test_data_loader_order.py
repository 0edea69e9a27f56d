from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iddpm.data.listing import Provenance, Tally
from iddpm.data.loader import Batches, Prefetch
from iddpm.data.shards import Layout
from iddpm.data.store import Store
from iddpm.evaluation.pictures import InOrder

PROVENANCE = Provenance(
    source="made up",
    kind="npz",
    fingerprint="",
    settings={},
    rule="",
    split_rule="",
    found=0,
    used=0,
    ignored=Tally(),
    damaged=Tally(),
    duplicates=0,
    cropped=0,
    enlarged=0,
    attribution=None,
    notes=(),
    tool="",
)


class InMemory:
    def __init__(self, images):
        self.images = images

    def read(self, index):
        return self.images[index]


def store_of(count: int, held_out: int) -> Store:
    """A store in memory; a picture's pixels are its index."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1), (count, 1, 2, 2))
    return Store(
        path=Path("made up"),
        count=count,
        pictures=InMemory(images),
        layout=Layout.of((1, 2, 2), count, "raw"),
        labels=np.arange(count) % 3,
        classes=("a", "b", "c"),
        size=2,
        channels=1,
        content_hash="",
        train=np.arange(held_out, count),
        held_out=np.arange(held_out),
        provenance=PROVENANCE,
    )


counts = st.integers(1, 60)
sizes = st.integers(1, 80)
seeds = st.integers(0, 2**40)


@given(count=counts, held_out=st.integers(0, 5), batch_size=sizes, seed=seeds)
def test_every_epoch_is_a_permutation_with_no_gap(count, held_out, batch_size, seed):
    batches = Batches(store_of(count + held_out, held_out), "train", batch_size, seed)
    needed = -(-3 * count // batch_size)
    walked = np.concatenate([batches.at(step).index.numpy() for step in range(needed)])
    for epoch in range(3):
        assert sorted(walked[epoch * count : (epoch + 1) * count]) == list(range(held_out, held_out + count))


@given(count=counts, batch_size=sizes, seed=seeds, start=st.integers(0, 300), flip=st.booleans())
def test_a_batch_does_not_depend_on_where_one_starts(count, batch_size, seed, start, flip):
    store = store_of(count, 0)
    walked = Batches(store, "train", batch_size, seed, flip)
    for step in range(max(0, start - 3), start):
        walked.at(step)
    fresh = Batches(store, "train", batch_size, seed, flip).at(start)
    assert (walked.at(start).index == fresh.index).all()
    assert (walked.at(start).images == fresh.images).all()
    with Prefetch(walked, start) as ahead:
        step, batch = next(ahead)
    assert step == start
    assert (batch.images == fresh.images).all()


@given(batch_size=sizes, seed=seeds, step=st.integers(0, 50), cuts=st.lists(st.integers(0, 80), max_size=3))
def test_parts_of_a_batch_join_to_the_batch(batch_size, seed, step, cuts):
    batches = Batches(store_of(20, 0), "train", batch_size, seed, flip=True)
    edges = sorted({0, batch_size, *(cut for cut in cuts if cut < batch_size)})
    parts = [batches.at(step, first, last - first) for first, last in pairwise(edges)]
    whole = batches.at(step)
    assert np.array_equal(np.concatenate([part.index for part in parts]), whole.index)
    assert np.array_equal(np.concatenate([part.images for part in parts]), whole.images)
    assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)


@given(held_out=counts, batch_size=sizes, num=st.none() | st.integers(1, 70))
def test_in_order_is_exact(held_out, batch_size, num):
    batches = list(InOrder(store_of(held_out + 3, held_out), "held_out", batch_size, num))
    index = np.concatenate([batch.index for batch in batches])
    wanted = held_out if num is None else min(num, held_out)
    assert len(set(index.tolist())) == len(index) == wanted
    assert index.max() < held_out
    assert all(len(batch) == batch_size for batch in batches[:-1])
