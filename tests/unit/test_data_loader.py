import threading

import numpy as np
import pytest
import torch

from iddpm.data.loader import Batches, Prefetch, fixed_order
from iddpm.data.preparing import prepare
from iddpm.evaluation.pictures import InOrder
from iddpm.runtime.errors import DataError


def stored(folder, count, labels=True):
    images = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    arrays = (images, np.arange(count) % 3) if labels else (images,)
    np.savez(folder / "pictures.npz", *arrays)
    return prepare(folder / "pictures.npz", 6, folder / "store").store


@pytest.fixture
def store(tmp_path):
    return stored(tmp_path, 50)


def test_batch_holds_the_pictures_it_names(store):
    batch = Batches(store, "train", 8, seed=1).at(3)
    assert torch.equal(batch.images, torch.from_numpy(store.read(batch.index.numpy())))
    assert torch.equal(batch.labels, batch.index % 3)
    assert batch.place.tolist() == list(range(8))
    assert len(batch) == 8


def test_training_never_reads_the_held_out_split(store):
    batches = Batches(store, "train", 16, seed=0)
    seen = torch.cat([batches.at(step).index for step in range(9)])
    assert set(seen.tolist()) == set(store.train.tolist())


def test_order_changes_with_the_seed_and_the_epoch(store):
    epoch = len(store.train)
    first = Batches(store, "train", epoch, seed=0)
    assert first.at(0).index.tolist() != first.at(1).index.tolist()
    assert first.at(0).index.tolist() != Batches(store, "train", epoch, seed=1).at(0).index.tolist()


def test_dat_12_batch_larger_than_the_set(tmp_path):
    store = stored(tmp_path, 5)
    batch = Batches(store, "train", 11, seed=0).at(0)
    assert len(store.train) == 4
    assert len(batch) == 11
    for start in (0, 4):
        assert sorted(batch.index[start : start + 4].tolist()) == store.train.tolist()


def test_part_of_a_batch_is_that_part(store):
    batches = Batches(store, "train", 12, seed=5, flip=True)
    whole, part = batches.at(7), batches.at(7, first=4, count=5)
    assert torch.equal(part.images, whole.images[4:9])
    assert torch.equal(part.place, whole.place[4:9])


def test_flips_mirror_half_of_the_pictures_anew_each_time(store):
    plain, flipped = (Batches(store, "train", 40, 3, flip=flip) for flip in (False, True))
    patterns, mirrored = set(), 0
    for step in range(10):
        before, after = plain.at(step).images, flipped.at(step).images
        rows = [torch.equal(a, b.flip(-1)) for a, b in zip(after, before, strict=True)]
        same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
        assert all(row != equal for row, equal in zip(rows, same, strict=True))
        patterns.add(tuple(rows))
        mirrored += sum(rows)
    assert len(patterns) == 10
    assert 150 < mirrored < 250


def test_dat_11_flips_repeat_with_the_seed(store):
    once, again = (Batches(store, "train", 40, 3, flip=True).at(2).images for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, Batches(store, "train", 40, 4, flip=True).at(2).images)


def test_no_labels(tmp_path):
    assert Batches(stored(tmp_path, 5, labels=False), "train", 2, seed=0).at(0).labels is None


def test_empty_split_is_refused(tmp_path):
    store = stored(tmp_path, 1)
    with pytest.raises(DataError, match="held-out"):
        Batches(store, "held_out", 2, seed=0)
    with pytest.raises(DataError, match="held-out"):
        fixed_order(store, "held_out")


def test_in_order_covers_each_picture_once_with_a_short_last_batch(store):
    batches = list(InOrder(store, "all", 16))
    assert [len(batch) for batch in batches] == [16, 16, 16, 2]
    index = torch.cat([batch.index for batch in batches])
    assert sorted(index.tolist()) == list(range(50))
    assert index.tolist() != list(range(50))
    assert torch.cat([batch.place for batch in batches]).tolist() == list(range(50))
    for num in (9, 50):
        again = torch.cat([batch.index for batch in InOrder(store, "all", 7, num)])
        assert again.tolist() == index[:num].tolist()


def test_prefetch_gives_the_same_batches(store):
    batches = Batches(store, "train", 8, seed=0)
    with Prefetch(batches, 5, 12) as ahead:
        made = list(ahead)
        assert next(ahead, None) is None
        assert ahead.wait_seconds >= 0
    assert [step for step, _ in made] == list(range(5, 12))
    assert all(torch.equal(batch.images, batches.at(step).images) for step, batch in made)


def threads_of_prefetch():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_prefetch_stops_when_the_block_is_left(store):
    with Prefetch(Batches(store, "train", 8, seed=0), 0) as ahead:
        next(ahead)
        assert threads_of_prefetch()
    assert not threads_of_prefetch()


def test_prefetch_stays_a_few_batches_ahead(store):
    class Counted(Batches):
        made = 0

        def at(self, step, first=0, count=None):
            self.made += 1
            return super().at(step, first, count)

    batches = Counted(store, "train", 8, seed=0)
    with Prefetch(batches, 0, ahead=3) as ahead:
        next(ahead)
        for _ in range(100):
            if batches.made == 5:
                break
            threading.Event().wait(0.01)
        threading.Event().wait(0.05)
        assert batches.made == 5  # one used, three ready, one waiting for room


def test_prefetch_carries_an_error_to_its_step(store):
    class Failing(Batches):
        def at(self, step, first=0, count=None):
            if step == 2:
                raise OSError("the disk is gone")
            return super().at(step, first, count)

    with Prefetch(Failing(store, "train", 8, seed=0), 0) as ahead:
        assert [next(ahead)[0], next(ahead)[0]] == [0, 1]
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)


def test_prefetch_measures_the_wait(store):
    class Slow(Batches):
        def at(self, step, first=0, count=None):
            threading.Event().wait(0.05)
            return super().at(step, first, count)

    with Prefetch(Slow(store, "train", 8, seed=0), 0) as ahead:
        next(ahead)
        assert ahead.wait_seconds > 0.03
