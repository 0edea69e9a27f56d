"""Pickles that hold plain data and numpy arrays, read without running anything that they ask for.

The batches of CIFAR and of the downsampled ImageNet are such pickles, most of them written by Python 2. A pickle is
a program: it may call whatever `find_class` gives it. Here it gets stand-ins of our own alone, never numpy's functions:
these build arrays from plain numbers and bytes once all of it is checked, while numpy trusts what it is told about
types, flags and objects.
"""

import math
import pickle
import re
from collections.abc import Callable
from io import BufferedIOBase
from typing import IO, Any, ClassVar

import numpy as np

from iddpm.data.names import one_line
from iddpm.runtime.errors import DataError

__all__ = ["plain_pickle"]

_PLAIN_TYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")

# What plain data is written with. Left out: instances, persistent ids, buffers from outside, and the extension codes,
# which give an object that was registered elsewhere in the process without asking `find_class`.
_OPERATIONS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 LIST EMPTY_LIST APPEND APPENDS TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 DICT EMPTY_DICT SETITEM SETITEMS
    GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL INST REDUCE BUILD
"""


class _RefusedError(Exception):
    """The pickle asks for something that is no plain data."""


class _StandIn:
    """What a pickle gets in place of numpy's own.

    Classes rather than functions, with `__setstate__` and without attributes: a pickle could set attributes of a
    function, such as its defaults, and they would stay.
    """

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError("a state where there is none")


class _ArrayType(_StandIn):
    """In place of `numpy.ndarray`: named in pickles, never called."""

    __slots__ = ()

    def __init__(self) -> None:
        raise _RefusedError("a call of numpy.ndarray")


class _Dtype(_StandIn):
    """In place of `numpy.dtype`: numbers and truth values alone."""

    __slots__ = ("plain",)

    def __init__(self, code: object, *_: object) -> None:
        text = _text(code)
        if not _PLAIN_TYPE.fullmatch(text):
            raise _RefusedError(f"an array of type {text!r}")
        self.plain = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        _, order, part, names, fields, *_ = state
        if (part, names, fields) != (None, None, None):
            raise _RefusedError("an array of records")
        if _text(order) in ("<", ">"):
            self.plain = self.plain.newbyteorder("<" if _text(order) == "<" else ">")


class _Array(_StandIn):
    """In place of `_reconstruct`, which gives an empty array whose state follows."""

    __slots__ = ("content",)

    def __init__(self, kind: object, *_: object) -> None:
        if kind is not _ArrayType:
            raise _RefusedError("an array of another class")

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.content = _content(raw, dtype, shape, "F" if fortran else "C")


class _Buffer(_StandIn):
    """In place of `_frombuffer`, which gives a whole array."""

    __slots__ = ()

    def __new__(cls, raw: bytes | bytearray, dtype: _Dtype, shape: tuple[int, ...], order: str) -> Any:
        array = _Array(_ArrayType)
        array.content = _content(raw, dtype, shape, order)
        return array


class _Scalar(_StandIn):
    """In place of `scalar`, which gives one number."""

    __slots__ = ()

    def __new__(cls, dtype: _Dtype, raw: bytes) -> Any:
        return _content(raw, dtype, (), "C").item()


class _Encoded(_StandIn):
    """In place of `_codecs.encode`, with which Python 3 writes bytes for Python 2."""

    __slots__ = ()

    def __new__(cls, text: object, encoding: object) -> Any:
        if _text(encoding) != "latin1":
            raise _RefusedError(f"the encoding {_text(encoding)!r}")
        return _text(text).encode("latin1")


_STAND_INS: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Buffer for core in ("core", "_core")},
}


# What puts things under keys, and where on the stack the first key lies, of which there is one to each value.
_KEYED = {pickle.DICT[0]: 0, pickle.SETITEMS[0]: 0, pickle.SETITEM[0]: -2}


def _with_plain_keys(code: int, first: int) -> Callable[[Any], None]:
    """An operation for plain keys alone: the hash of tuples that hold one tuple twice, at each level, is never done."""

    def load(unpickler: Any) -> None:
        for key in unpickler.stack[first::2]:
            _text(key)
        pickle._Unpickler.dispatch[code](unpickler)

    return load


class _Unpickler(pickle._Unpickler):
    """The interpreter's unpickler as it is written in Python, with the operations and globals of plain data alone.

    Not the one written in C: its operations cannot be taken away, and a few damaged bytes make it ask for gigabytes.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS.split())
    } | {code: _with_plain_keys(code, first) for code, first in _KEYED.items()}

    def find_class(self, module: str, name: str) -> type[_StandIn]:
        """The stand-in for exactly this name; names with dots, which would be walked through, are among the others."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None


def plain_pickle(file: BufferedIOBase | IO[bytes], where: str) -> dict[str, Any]:
    """Read a pickled dictionary of plain data and numpy arrays; texts of Python 2 come as bytes, its keys as text.

    Args:
        file: From where to read.
        where: What to call it in errors.

    Raises:
        DataError: Damaged, no dictionary, or it asks for anything else; nothing of that was run.
    """
    try:
        content = _Unpickler(file, encoding="bytes").load()
        return {_text(key): value.content if isinstance(value, _Array) else value for key, value in content.items()}
    except _RefusedError as error:
        raise DataError(
            f"{where}: a pickle that asks for {one_line(error, 100)}, which is no plain data; nothing of it was run",
            "get the file again from its origin",
        ) from error
    except Exception as error:  # a damaged pickle raises nearly anything: Key, Index, Type, Unicode, struct, Memory...
        raise DataError(f"{where}: damaged, or not a pickle of plain data", "get the file again") from error


def _content(raw: object, dtype: object, shape: object, order: str) -> np.ndarray:
    """An array of plain numbers over bytes, without copying them."""
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray) or not isinstance(shape, tuple):
        raise _RefusedError("an array of something else than numbers")
    if any(type(side) is not int or side < 0 for side in shape) or math.prod(shape) * dtype.plain.itemsize != len(raw):
        raise ValueError("bytes and shape do not fit")
    return np.frombuffer(raw, dtype.plain).reshape(shape, order="F" if order == "F" else "C")


def _text(value: object) -> str:
    if not isinstance(value, str | bytes | int):
        raise _RefusedError("another kind of object where a text belongs")
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
