"""What a pickle may hold, and that nothing else in it is ever run."""

import contextlib
import copyreg
import io
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iddpm.data.sources.arrays.pickles import plain_pickle
from iddpm.runtime.errors import DataError
from python_2 import python_2

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 12)


def read(content):
    return plain_pickle(io.BytesIO(content), "batch")


class Calls:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def by_name(module, name, argument=b"X\x01\x00\x00\x00."):
    """A pickle that calls a global with one text, at protocol 4, which takes dots in names."""
    return (
        b"\x80\x04\x8c"
        + struct.pack("<B", len(module))
        + module.encode()
        + b"\x8c"
        + struct.pack("<B", len(name))
        + name.encode()
        + b"\x93"
        + argument
        + b"\x85R."
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_gives_arrays_lists_and_numbers(protocol):
    batch = {
        "data": PIXELS,
        "labels": [1, 2],
        "mean": np.array([0.5, 1.5]),
        "one": np.int64(7),
        "name": "a",
        "none": None,
    }
    loaded = read(pickle.dumps(batch, protocol=protocol))
    assert np.array_equal(loaded["data"], PIXELS)
    assert loaded["data"].dtype == np.uint8
    assert loaded["mean"].tolist() == [0.5, 1.5]
    assert (loaded["labels"], loaded["one"], loaded["name"], loaded["none"]) == ([1, 2], 7, "a", None)


def test_pickle_of_python_2():
    loaded = read(python_2({"data": PIXELS, "labels": [1, 999], "name": "batch 1 of 10"}))
    assert np.array_equal(loaded["data"], PIXELS)
    assert (loaded["labels"], loaded["name"]) == ([1, 999], b"batch 1 of 10")


def test_array_in_another_byte_order_and_column_by_column():
    numbers = np.array([[1, 2, 3], [4, 5, 600]], dtype=">i4")
    for array in (numbers, np.asfortranarray(numbers)):
        assert read(python_2({"labels": array}))["labels"].tolist() == numbers.tolist()
    assert read(pickle.dumps({"a": np.asfortranarray(numbers)}))["a"].tolist() == numbers.tolist()


def test_list_of_numpy_numbers_is_a_list_of_numbers():
    assert read(pickle.dumps({"labels": [np.int64(3), np.uint8(4)]}, protocol=2)) == {"labels": [3, 4]}


@pytest.fixture
def harmless(monkeypatch):
    """Functions that a pickle may try to run, replaced by one that tells."""
    run = []
    for module, name in ((os, "system"), (np, "load"), (np, "fromfile")):
        monkeypatch.setattr(module, name, lambda *arguments, name=name: run.append(name))
    yield run
    assert run == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("builtins", "getattr"),
        ("builtins", "exec"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "__builtins__"),
        ("numpy.f2py.diagnose", "run_command"),
        ("numpy.testing._private.utils", "runstring"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy._core.numeric", "builtins.eval"),
        ("numpy", "dtype.__init__.__globals__"),
        ("numpy", "core.multiarray._reconstruct"),
        ("numpy.core.multiarray", "fromfile"),
        ("_codecs", "encode.__self__"),
        ("codecs", "open"),
        ("iddpm.data.sources.arrays.pickles", "plain_pickle"),
        ("functools", "partial"),
        ("copyreg", "_reconstructor"),
    ],
)
def test_global_that_is_no_plain_data_is_refused_by_name(harmless, module, name):
    with pytest.raises(DataError) as caught:
        read(by_name(module, name))
    assert f"asks for {module}.{name}," in caught.value.what


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_call_of_os_system_is_refused_at_every_protocol(protocol, tmp_path):
    content = pickle.dumps({"data": Calls(os.system, f"touch {tmp_path}/run")}, protocol=protocol)
    with pytest.raises(DataError, match=f"asks for {os.system.__module__}.system,"):
        read(content)
    assert not list(tmp_path.iterdir())


def test_instance_of_protocol_0_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"asks for os\.system,"):
        read(b"(S'touch " + os.fsencode(tmp_path / "run") + b"'\nios\nsystem\n.")
    assert not list(tmp_path.iterdir())


def test_arrays_of_objects_are_refused():
    for content in ([{}, {}], [Calls(os.system, "true")]):
        array = np.empty(len(content), object)
        array[:] = content
        with pytest.raises(DataError, match=r"type 'O8'|system"):
            read(pickle.dumps({"data": array}, protocol=2))


def test_types_with_objects_or_records_inside_are_refused():
    records = np.zeros(2, [("a", "u1"), ("b", "u1")])
    with pytest.raises(DataError, match=r"type 'V2'"):
        read(pickle.dumps({"data": records}))
    # A forged state: plain numbers that become records with objects, which numpy would take for pointers.
    forged = python_2({"data": np.zeros(1, np.uint8)}).replace(b"|NNN", b"|NU\x01a}")
    with pytest.raises(DataError, match="an array of records"):
        read(forged)


def test_array_of_another_class_is_refused():
    with pytest.raises(DataError, match=r"numpy\.matrix|another class"):
        read(pickle.dumps({"data": np.zeros((2, 2), np.uint8).view(np.matrix)}))


def test_shape_that_asks_for_more_than_there_is_is_refused():
    with pytest.raises(DataError, match="damaged"):
        read(python_2({"data": PIXELS}).replace(b"J\x0c\0\0\0", b"J\xff\xff\xff\x7f"))


def test_what_is_given_to_a_pickle_cannot_be_changed_by_it():
    """`b` on a global sets attributes where it can: defaults of a function would stay changed for the next file."""
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode"):
        with pytest.raises(DataError):
            read(b"\x80\x02c" + name + b"\n}U\x04evilK\x01s\x86b.")
        with pytest.raises(DataError):
            read(b"\x80\x02c" + name + b"\nN}U\x04evilK\x01s\x86b.")
    assert np.array_equal(read(pickle.dumps({"data": PIXELS}))["data"], PIXELS)


def test_extension_codes_which_ask_nobody_are_refused(monkeypatch):
    monkeypatch.setitem(copyreg._extension_cache, 77, print)
    monkeypatch.setitem(copyreg._inverted_registry, 77, ("builtins", "print"))
    with pytest.raises(DataError, match="not a pickle of plain data"):
        read(b"\x80\x02\x82\x4d)R.")


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x02.", b"\x80\x02]q\x01.", b"hello", b"\x80\x02P1\n."])
def test_what_is_no_dictionary(content):
    with pytest.raises(DataError, match="damaged, or not a pickle of plain data"):
        read(content)


def test_few_bytes_cannot_ask_for_much_memory():
    tracemalloc.start()
    with pytest.raises(DataError):
        read(b"\x80\x02Nr\xff\xff\xff\x7f0\x8b\xff\xff\xff\x7f.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_name_in_an_error_is_one_short_line():
    with pytest.raises(DataError) as caught:
        read(by_name("evil\nmodule", "x" * 200))
    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 250


@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_byte_gives_an_array_or_one_error(at, value):
    content = bytearray(pickle.dumps({"data": PIXELS, "labels": [1, 2]}, protocol=2))
    content[at % len(content)] = value
    with contextlib.suppress(DataError):
        assert isinstance(read(bytes(content)), dict)


def test_large_array_is_read_once():
    content = pickle.dumps({"data": np.zeros((1000, 3072), np.uint8)})
    file = io.BytesIO(content)
    tracemalloc.start()
    array = plain_pickle(file, "batch")["data"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.shape == (1000, 3072)
    assert peak < 1.1 * array.nbytes


# A tuple of 60 levels, each of which holds the one below twice: what would walk it takes for ever.
DEEP = b")q\0" + b"".join(
    b"0h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1]) for level in range(60)
)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}" + DEEP + b"Ns.",
        b"\x80\x02}(" + DEEP + b"Nu.",
        b"\x80\x02(" + DEEP + b"Nd.",
        b"\x80\x02cnumpy\ndtype\n" + DEEP + b"\x85R.",
        b"\x80\x02c_codecs\nencode\nU\x01a" + DEEP + b"\x86R.",
    ],
)
def test_tuples_that_hold_one_tuple_twice_are_not_walked(content):
    with pytest.raises(DataError, match="another kind of object where a text belongs"):
        read(content)
