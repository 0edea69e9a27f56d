import numpy as np
import pytest

from iddpm.runtime.errors import OutputError, RunError
from iddpm.sampling.generate import Order
from iddpm.sampling.parts import Parts

ORDER = Order(num=5, shape=(3, 4, 4), seed=0, batch_size=2)


def batch(value, count=2):
    return np.full((count, 4, 4, 3), value, dtype=np.uint8)


@pytest.fixture
def parts(tmp_path):
    parts = Parts(tmp_path / "samples" / "key", "abc")
    parts.open()
    return parts


def test_what_is_written_is_there_and_the_rest_is_missing(parts, tmp_path):
    assert parts.missing(0, ORDER) == [0, 1, 2]
    parts.write(0, 2, batch(2, 1))
    parts.write(0, 0, batch(0))
    assert parts.missing(0, ORDER) == [1]
    assert parts.missing(1, ORDER) == [0, 1, 2]
    parts.write(0, 1, batch(1))
    images = parts.read(0, ORDER)
    assert images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2]
    assert [path.name for path in (tmp_path / "samples").iterdir()] == [".key.parts"]
    parts.remove()
    assert list((tmp_path / "samples").iterdir()) == []


def test_opened_again_it_keeps_what_is_its_own_and_nothing_else(parts, tmp_path):
    parts.write(0, 1, batch(1))
    (parts.folder / ".abc-0-000002.npy.123.part").write_bytes(b"half")
    again = Parts(tmp_path / "samples" / "key", "abc")
    again.open()
    assert again.missing(0, ORDER) == [0, 2]
    assert len(list(parts.folder.iterdir())) == 1
    other = Parts(tmp_path / "samples" / "key", "abd")
    other.open()
    assert other.missing(0, ORDER) == [0, 1, 2]
    assert list(parts.folder.iterdir()) == []


def test_a_part_that_cannot_be_read_is_named(parts):
    parts.write(0, 0, batch(0))
    with pytest.raises(RunError, match="abc-0-000001"):
        parts.read(0, ORDER)
    (parts.folder / "abc-0-000001.npy").write_bytes(b"no numbers")
    with pytest.raises(RunError, match="abc-0-000001") as refused:
        parts.read(0, ORDER)
    assert "remove it" in str(refused.value.fix)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        Parts(tmp_path / "file" / "key", "abc").open()
    with pytest.raises(OutputError, match="gone"):
        Parts(tmp_path / "gone", "abc").write(0, 0, batch(0))
