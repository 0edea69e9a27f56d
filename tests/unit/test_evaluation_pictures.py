import numpy as np
import pytest
import torch

from iddpm.data.loader import in_order
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.evaluation.pictures import InOrder, NumberedBatches
from iddpm.runtime.errors import DataError


@pytest.mark.parametrize("num", [None, 1, 8, 9])
@pytest.mark.parametrize("split", ["train", "all"])
@pytest.mark.parametrize("size", [None, 4])
def test_each_batch_by_itself_is_the_one_of_the_whole_order(small_digits, num, split, size):
    store = open_store(small_digits)
    pictures, whole = InOrder(store, split, 4, num, size), list(in_order(store, split, 4, num, size))
    assert isinstance(pictures, NumberedBatches)
    assert len(pictures) == len(whole)
    for number in reversed(range(len(pictures))):
        one, other = pictures[number], whole[number]
        for name in ("images", "labels", "place", "index"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
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
