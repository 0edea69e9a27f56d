"""Dictionaries pickled byte for byte as Python 2 and numpy 1 did it at protocol 2: the old sets' batches are such files."""

import struct
from typing import Any

import numpy as np

__all__ = ["python_2"]


def python_2(content: dict[str, Any]) -> bytes:
    """Texts, lists, whole numbers and arrays (in their own order of bytes and axes) under some keys."""
    return b"\x80\x02}(" + b"".join(_text(key.encode()) + _value(each) for key, each in content.items()) + b"u."


def _value(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_value, value)) + b"e"
    if isinstance(value, str):
        return _text(value.encode())
    return b"J" + struct.pack("<i", value)


def _text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<I", len(text)) + text


def _array(array: np.ndarray) -> bytes:
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    order = {"=": b"<", "|": b"|", "<": b"<", ">": b">"}[array.dtype.byteorder]
    return b"".join(
        (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01",
            b"(" + b"".join(map(_value, array.shape)) + b"t",
            b"cnumpy\ndtype\n" + _text(array.dtype.str[1:].encode()) + b"K\x00K\x01\x87R",
            b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x88" if fortran else b"\x89",
            _text(array.tobytes("A")) + b"tb",
        )
    )
