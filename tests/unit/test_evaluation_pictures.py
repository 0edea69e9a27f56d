import numpy as np
import pytest
import torch

from iddpm.data.crop import resized
from iddpm.data.loader import fixed_order
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.evaluation.pictures import InOrder, NumberedBatches
from iddpm.runtime.errors import DataError


@pytest.mark.parametrize("num", [None, 1, 8, 9])
@pytest.mark.parametrize("split", ["train", "all"])
@pytest.mark.parametrize("size", [None, 4])
def test_each_batch_by_itself_is_the_one_of_the_whole_order(small_digits, num, split, size):
    store = open_store(small_digits)
    pictures, index = InOrder(store, split, 4, num, size), fixed_order(store, split, num)
    assert isinstance(pictures, NumberedBatches)
    assert len(pictures) == -(-len(index) // 4)
    found = {number: pictures[number] for number in reversed(range(len(pictures)))}
    whole = [
        torch.cat([getattr(found[n], name) for n in sorted(found)]) for name in ("images", "labels", "place", "index")
    ]
    assert torch.equal(whole[0], torch.from_numpy(resized(store.read(index), size or store.size)))
    assert torch.equal(whole[1], torch.from_numpy(store.labels[index]))
    assert whole[2].tolist() == list(range(len(index)))
    assert whole[3].tolist() == index.tolist()
    for number in (-1, len(pictures)):
        with pytest.raises(IndexError):
            pictures[number]


def test_pictures_without_labels_have_none(tmp_path):
    np.savez(tmp_path / "plain.npz", np.zeros((30, 6, 6, 3), np.uint8))
    assert InOrder(prepare(tmp_path / "plain.npz", 6, tmp_path / "store").store, "all", 4)[0].labels is None


def test_a_split_without_pictures_is_refused(tmp_path):
    np.savez(tmp_path / "one.npz", np.zeros((1, 6, 6, 3), np.uint8))
    with pytest.raises(DataError, match="held-out"):
        InOrder(prepare(tmp_path / "one.npz", 6, tmp_path / "store").store, "held_out", 4)
