"""Where the arrays of one data file lie: key → offset, type, shape, order. The elements themselves are not read.

Two kinds of file: a pickled dict of numpy arrays (``.distcp``), protocols 3 to 5, numpy 1 and 2; and safetensors.
Arrays of one pickle may share their bytes: a pickler writes equal one-byte arrays once.

Formats: numpy's ``ndarray.__reduce_ex__`` (protocol 5 and contiguous: ``_frombuffer``; else ``_reconstruct`` and a
state tuple), ``dtype.__reduce__``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexstore.backends.base import Store
from flexstore.core.dtypes import DTYPES
from flexstore.errors import CorruptCheckpointError
from flexstore.strategies.distcp.machine import AllowList, Buildable, Payload, numbers, run
from flexstore.strategies.distcp.window import Refusal, Window
from flexstore.strategies.safetensors_header import read_header

NAME_TABLE = "StructuredToParameterName@@"
SAFETENSORS = ".safetensors"
_STRUCTURE_LIMIT = 256 << 20
_CODES = {dtype.numpy.str[1:]: dtype.numpy for dtype in DTYPES.values() if dtype.is_numpy_native}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a data file.

    Attributes:
        offset: byte offset of its first element in the file.
        dtype: of the stored elements; bfloat16 and 8-bit floats may be stored as integers of the same width.
        shape: in elements.
        fortran: True if stored column-major.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool


def index_file(store: Store, name: str, nbytes: int) -> dict[str, StoredArray]:
    """The arrays of a data file of ``nbytes`` bytes.

    Raises:
        CorruptCheckpointError: it is not a data file, or was cut short.
        StoreError: the storage failed.
    """
    return _safetensors(store, name) if name.endswith(SAFETENSORS) else _pickled(store, name, nbytes)


def _safetensors(store: Store, name: str) -> dict[str, StoredArray]:
    header = read_header(store, name)
    return {
        key: StoredArray(start, DTYPES[dtype].numpy, shape, False)
        for key, (dtype, shape, start, _) in header.tensors.items()
    }


def _pickled(store: Store, name: str, nbytes: int) -> dict[str, StoredArray]:
    window = Window(store, name, nbytes, ahead=store.io.gap_nbytes, limit=_STRUCTURE_LIMIT)
    content = run(window, _ALLOWED)
    if not isinstance(content, dict):
        raise CorruptCheckpointError("a data file must hold one dict of arrays", file=name)
    return {key: _array(key, value, name) for key, value in content.items() if key != NAME_TABLE}


def _array(key: object, value: object, file: str) -> StoredArray:
    array = value.array if isinstance(value, _Reconstructed) else value
    if not isinstance(key, str) or not isinstance(array, StoredArray):
        shown = key if isinstance(key, str) else None
        raise CorruptCheckpointError("a data file holds something that is not a numpy array", key=shown, file=file)
    return array


class _ElementType(Buildable):
    """A numpy dtype: its code, such as ``f4``, and its byte order."""

    __slots__ = ("numpy",)

    def __init__(self, code: str) -> None:
        if code not in _CODES:
            raise Refusal(f"arrays of numpy type {code[:16]!r} are not tensors")
        self.numpy = _CODES[code]

    def build(self, state: object) -> None:
        match state:
            case (3, "<" | "|" | "=", None, None, None, -1, -1, 0):
                return
        raise Refusal("an array is big-endian or of a structured type")


class _Reconstructed(Buildable):
    """An array that is made empty and then given its state."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: StoredArray | None = None

    def build(self, state: object) -> None:
        match state:
            case (1, tuple() as shape, _ElementType() as kind, bool() as fortran, Payload() as payload):
                self.array = _placed(payload, kind, shape, fortran)
            case _:
                raise Refusal("the state of an array is not (1, shape, dtype, order, bytes)")


def _placed(payload: Payload, kind: _ElementType, shape: tuple[object, ...], fortran: bool) -> StoredArray:
    dims = numbers(shape, "the shape of an array")
    nbytes = math.prod(dims) * kind.numpy.itemsize
    if nbytes != payload.nbytes:
        raise Refusal(f"an array of shape {dims} and type {kind.numpy} has {payload.nbytes} bytes, not {nbytes}")
    return StoredArray(payload.offset, kind.numpy, dims, fortran and len(dims) > 1)


def _reconstruct(args: tuple[object, ...]) -> _Reconstructed:
    return _Reconstructed()


def _frombuffer(args: tuple[object, ...]) -> StoredArray:
    match args:
        case (Payload() as payload, _ElementType() as kind, tuple() as shape, "C" | "F" as order):
            return _placed(payload, kind, shape, order == "F")
    raise Refusal("the arguments of an array are not (bytes, dtype, shape, order)")


def _dtype(args: tuple[object, ...]) -> _ElementType:
    match args:
        case (str() as code, int(), int()):
            return _ElementType(code)
    raise Refusal("the arguments of a numpy type are not (code, align, copy)")


def _ndarray(args: tuple[object, ...]) -> object:
    raise Refusal("numpy.ndarray is called")


_ALLOWED: AllowList = {
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
}
