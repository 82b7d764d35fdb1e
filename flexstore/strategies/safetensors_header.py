"""The header of a safetensors file, read and written without the safetensors library.

A file is: the header's length n (8 bytes, little-endian); n bytes of UTF-8 JSON, one object that maps each tensor's
name to ``{"dtype", "shape", "data_offsets": [start, stop]}`` (bytes, counted from the end of the header) and
``__metadata__``, if there, to an object of strings; then the data, row-major and little-endian.
Source: the format section of the safetensors README, and what its reader refuses.

`read_header` trusts nothing: the data of the tensors must cover the rest of the file exactly, without holes or
overlaps, every range must be as long as shape and dtype say, names occur once, and a header is at most 100 MB. It
reads the header only, never the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from flexstore.backends.base import Store
from flexstore.core.dtypes import DTYPES, DType
from flexstore.core.manifest_check import MAX_DIM, is_addressable
from flexstore.errors import CorruptCheckpointError, InvalidStateError, UnsupportedValueError

METADATA_KEY = "__metadata__"

_LENGTH_NBYTES = 8
_MAX_HEADER_NBYTES = 100_000_000
_READ_AHEAD = 64 << 10
_ALIGNMENT = 8

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
_NAMES = {code: name for name, code in _CODES.items()}

_Int = Annotated[int, Meta(ge=0, le=MAX_DIM)]


class HeaderEntry(NamedTuple):
    """One tensor of a file: its dtype's name in flexstore, its shape, and where its bytes are in the file.

    Bytes ``start <= i < stop`` count from the beginning of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a file's header says.

    Attributes:
        tensors: name → entry, in the order of their data.
        metadata: the ``__metadata__`` strings.
        nbytes: where the data starts: the header and its length, in bytes.
    """

    tensors: dict[str, HeaderEntry]
    metadata: dict[str, str]
    nbytes: int

    @property
    def file_nbytes(self) -> int:
        """Bytes of the whole file."""
        return max((entry.stop for entry in self.tensors.values()), default=self.nbytes)


class _Info(Struct, frozen=True, gc=False):
    dtype: str
    shape: list[_Int]
    data_offsets: tuple[_Int, _Int]


def dtype_code(dtype: DType) -> str:
    """What safetensors calls a dtype.

    Raises:
        UnsupportedValueError: it has no such dtype.
    """
    if dtype.name not in _CODES:
        raise UnsupportedValueError(
            f"safetensors has no element type for {dtype}", hint="save with another strategy, such as 'distcp'"
        )
    return _CODES[dtype.name]


def write_header(tensors: Iterable[tuple[str, DType, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the data of a file that holds ``tensors``, one after the other.

    They are padded with spaces, so that the data starts at a multiple of 8. Pure.

    Args:
        tensors: name, dtype and shape of each, in the order of the data.
        metadata: for ``__metadata__``.

    Raises:
        InvalidStateError: a name occurs twice, is reserved or is not valid Unicode, or the header would be longer than
            readers accept.
        UnsupportedValueError: safetensors has no such dtype.
    """
    document: dict[str, Any] = {METADATA_KEY: dict(metadata)}
    stop = 0
    for name, dtype, shape in tensors:
        if name in document:
            raise InvalidStateError("a safetensors file cannot hold this name (again)", key=name)
        start, stop = stop, stop + _nbytes(dtype.name, shape)
        document[name] = {"dtype": dtype_code(dtype), "shape": shape, "data_offsets": (start, stop)}
    return _framed(document)


def _framed(document: dict[str, Any]) -> bytes:
    try:
        text = msgspec.json.encode(document)
    except UnicodeEncodeError as error:
        raise InvalidStateError(f"a name is not valid Unicode: {error.object[:100]!r}") from None
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _MAX_HEADER_NBYTES:
        raise InvalidStateError(
            f"the names and shapes of {len(document) - 1} tensors make a safetensors header of {len(text)} bytes, "
            f"readers accept {_MAX_HEADER_NBYTES}",
            hint="save from more ranks, or with another strategy",
        )
    return len(text).to_bytes(_LENGTH_NBYTES, "little") + text


def read_header(store: Store, name: str) -> SafetensorsHeader:
    """Read and check the header of the file ``name``.

    Raises:
        ObjectNotFoundError: no such file.
        CorruptCheckpointError: it is not a whole, valid safetensors file.
        UnsupportedValueError: it holds elements of a type that flexstore does not know (below 8 bits, for one).
    """
    nbytes = store.head(name).nbytes
    try:
        text = _header_text(store, name, nbytes)
        return _parsed(text, nbytes)
    except (CorruptCheckpointError, UnsupportedValueError) as error:
        raise error.located(file=name) from None


def _header_text(store: Store, name: str, nbytes: int) -> bytes:
    if nbytes < _LENGTH_NBYTES:
        raise CorruptCheckpointError(f"a file of {nbytes} bytes is too short to be a safetensors file")
    head = store.get(name, 0, min(nbytes, _READ_AHEAD))
    stop = _LENGTH_NBYTES + int.from_bytes(head[:_LENGTH_NBYTES], "little")
    if stop > nbytes or stop > _LENGTH_NBYTES + _MAX_HEADER_NBYTES:
        raise CorruptCheckpointError(
            f"a safetensors header of {stop - _LENGTH_NBYTES} bytes in a file of {nbytes}; {_MAX_HEADER_NBYTES} at most"
        )
    if stop > len(head):
        head += store.get(name, len(head), stop)
    return head[_LENGTH_NBYTES:stop]


def _parsed(text: bytes, nbytes: int) -> SafetensorsHeader:
    document = _document(text)
    try:
        metadata = msgspec.convert(document.pop(METADATA_KEY, None), dict[str, str] | None) or {}
        infos = msgspec.convert(document, dict[str, _Info])
    except msgspec.ValidationError as error:
        raise CorruptCheckpointError(f"the safetensors header is not valid: {error}") from None
    data = _LENGTH_NBYTES + len(text)
    ordered = sorted(infos.items(), key=lambda item: item[1].data_offsets)
    tensors = {key: _entry(key, info, data) for key, info in ordered}
    _check_cover(tensors, data, nbytes)
    return SafetensorsHeader(tensors, metadata, data)


def _document(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise CorruptCheckpointError("a safetensors header must start with '{'")
    try:
        document: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"the safetensors header is not valid JSON: {error}") from None
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    "".join(members).encode()  # a lone surrogate is no text, and would fail wherever the name is written next
    return members


def _entry(key: str, info: _Info, data: int) -> HeaderEntry:
    if info.dtype not in _NAMES:
        raise UnsupportedValueError(f"unknown safetensors element type {info.dtype[:100]!r}", key=key)
    dtype, shape = _NAMES[info.dtype], tuple(info.shape)
    start, stop = info.data_offsets
    if not is_addressable(shape, DTYPES[dtype].itemsize) or stop - start != _nbytes(dtype, shape):
        raise CorruptCheckpointError(
            f"a tensor of shape {list(shape)[:100]} and type {info.dtype} cannot have bytes {start} to {stop}", key=key
        )
    return HeaderEntry(dtype, shape, data + start, data + stop)


def _nbytes(dtype: str, shape: Iterable[int]) -> int:
    return math.prod(shape, start=DTYPES[dtype].itemsize)


def _check_cover(tensors: Mapping[str, HeaderEntry], start: int, stop: int) -> None:
    at = start
    for key, entry in tensors.items():
        if entry.start != at:
            raise CorruptCheckpointError(f"the bytes of a tensor start at {entry.start}, not at {at}", key=key)
        at = entry.stop
    if at != stop:
        raise CorruptCheckpointError(f"the tensors end at byte {at} of {stop}", hint="the file was cut short, or grew")
