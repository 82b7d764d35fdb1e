"""``flexstore.json``: the manifest as a document. Format version 1.

The document is one JSON object (RFC 8259, UTF-8, no byte order mark). A writer MUST write these members, the last one
last, and no others; a reader MUST refuse any other:

    format        "flexstore"
    version       1
    attempt       id of the save, not empty
    strategy      name of the format of the data files
    library       name and version of the writer
    created       POSIX seconds
    world_size    ranks that saved it
    files         [[name, nbytes, frame_crc], ...]
    tensors       {key: tensor, ...}
    common        {dotted path: plain value, ...}; see `flexstore.core.plain`. Absent if empty
    common_paths  {dotted path: [piece, ...], ...} for those that are not just one piece. Absent if empty
    checksum      "crc32c:" and eight lower-case hexadecimal digits

``frame_crc`` is the CRC-32C of all bytes of the file that belong to no chunk, in file order, or null if unknown.
A tensor of n chunks has these members; a list that would be empty is left out:

    dtype         name of the element type
    shape         [extent, ...]
    path          [piece, ...]: its place in the saved nested state, if that is more than the key
    axis          the declared semantic axis, if any
    file          [n]: index into ``files``
    at            [n]: byte offset in the file
    offset        [n * ndim]: first index of each chunk, chunk after chunk
    extent        [n * ndim]: extent of each chunk, chunk after chunk
    crc           base64 of the little-endian uint32 CRC-32C of every checksum block, chunk after chunk
    fortran       [index of a chunk, ...]: those whose elements are stored column-major

``offset`` and ``extent`` are both left out where the one chunk is the whole tensor. A tensor without elements has no
chunks. The length of the checksum blocks follows from that of the chunk: `flexstore.core.checksum.block_nbytes`.

The document ends with exactly ``,"checksum":"crc32c:xxxxxxxx"}`` and a newline. The checksum is the CRC-32C of every
byte before that, so a change of any bit of the document is noticed. Every later version keeps this ending and the
members ``format`` and ``version``; any change of meaning is a new version.

`encode` and `decode` are pure and exact inverses. Nothing is allocated by a number in the document before it was
checked against the document's own length and the rules of `flexstore.core.manifest_check`. Of a member that occurs
twice the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from flexstore.core.checksum import crc32c
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import ChunkTable, FileInfo, Ints, Manifest, TensorInfo, padded
from flexstore.core.manifest_check import MAX_DIM, MAX_NDIM, block_counts, check_crcs, check_layout, first_true
from flexstore.core.plain import from_json, to_json
from flexstore.errors import CheckpointError, CorruptCheckpointError, InvalidStateError, UnsupportedVersionError

FORMAT = "flexstore"
VERSION = 1

_Int = Annotated[int, Meta(ge=0, le=MAX_DIM)]
_Index = Annotated[int, Meta(ge=0, lt=2**31)]
_Crc = Annotated[int, Meta(ge=0, lt=2**32)]
_Name = Annotated[str, Meta(min_length=1)]
_Path = Annotated[list[str], Meta(min_length=1)]
_S = TypeVar("_S", bound=Struct)

_TAIL_LENGTH = len(b',"checksum":"crc32c:xxxxxxxx"}\n')


class _File(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    name: str
    nbytes: _Int
    frame_crc: _Crc | None


class _Tensor(Struct, omit_defaults=True, forbid_unknown_fields=True, frozen=True, gc=False):
    dtype: str
    shape: Annotated[list[_Int], Meta(max_length=MAX_NDIM)]
    path: _Path | None = None
    axis: _Int | None = None
    file: list[_Index] = []
    at: list[_Int] = []
    offset: list[_Int] = []
    extent: list[_Int] = []
    crc: bytes = b""
    fortran: list[_Index] = []


class _Head(Struct, frozen=True):
    format: str
    version: Annotated[int, Meta(ge=1)]


class _Document(Struct, omit_defaults=True, forbid_unknown_fields=True, frozen=True, kw_only=True):
    format: str
    version: int
    attempt: _Name
    strategy: _Name
    library: str
    created: float
    world_size: Annotated[int, Meta(ge=1, lt=2**31)]
    files: list[_File]
    tensors: dict[str, _Tensor]
    common: dict[str, Any] = {}
    common_paths: dict[str, _Path] = {}
    checksum: str = ""


def encode(manifest: Manifest) -> bytes:
    """The document of a manifest.

    Raises:
        CheckpointError: the manifest breaks a rule, so that no reader would accept it; names the tensor or file.
        InvalidStateError: a name is not valid Unicode.
        UnsupportedValueError: ``common`` holds something that is not plain.
    """
    if manifest.is_foreign:
        raise CheckpointError("a manifest without an attempt id describes another program's checkpoint")
    check_layout(manifest, CheckpointError)
    check_crcs(manifest, CheckpointError)
    document = _Document(
        format=FORMAT,
        version=VERSION,
        attempt=manifest.attempt,
        strategy=manifest.strategy,
        library=manifest.library,
        created=manifest.created,
        world_size=manifest.world_size,
        files=[_File(file.name, file.nbytes, file.frame_crc) for file in manifest.files],
        tensors=dict(zip((info.key for info in manifest.tensors), _tensor_members(manifest), strict=True)),
        common={path: to_json(value) for path, value in manifest.common.items()},
        common_paths={path: list(pieces) for path, pieces in manifest.common_paths.items()},
    )
    try:
        body = msgspec.json.encode(document).removesuffix(b"}")
    except UnicodeEncodeError as error:
        raise InvalidStateError(
            f"a name is not valid Unicode: {error.object[:100]!r}", hint="rename the tensor or value"
        ) from None
    return body + _tail(body)


def _tail(body: bytes) -> bytes:
    return b',"checksum":"crc32c:%08x"}\n' % crc32c(body)


def _tensor_members(manifest: Manifest) -> Iterable[_Tensor]:
    table = manifest.chunks
    first = np.searchsorted(table.tensor, np.arange(len(manifest.tensors) + 1))
    rows, whole = first.tolist(), _single_whole(manifest, first)
    file, at = table.file.tolist(), table.byte_offset.tolist()
    crcs, crc_at = table.crcs.astype("<u4", copy=False).tobytes(), (table.crc_start[first] * 4).tolist()
    turned = np.flatnonzero(table.fortran)
    turned_at = np.searchsorted(turned, first).tolist()
    for i, info in enumerate(manifest.tensors):
        part, ndim = slice(rows[i], rows[i + 1]), 0 if whole[i] else len(info.shape)
        yield _Tensor(
            dtype=info.dtype.name,
            shape=list(info.shape),
            path=None if info.path is None else list(info.path),
            axis=info.declared_axis,
            file=file[part],
            at=at[part],
            offset=table.offset[:ndim, part].T.ravel().tolist() if ndim else [],
            extent=table.shape[:ndim, part].T.ravel().tolist() if ndim else [],
            crc=crcs[crc_at[i] : crc_at[i + 1]],
            fortran=[row - rows[i] for row in turned[turned_at[i] : turned_at[i + 1]].tolist()],
        )


def _single_whole(manifest: Manifest, first: Ints) -> list[bool]:
    """Whether each tensor is stored as one chunk that covers it (its offset must then be 0)."""
    table = manifest.chunks
    shapes = padded([info.shape for info in manifest.tensors], table.ndim, 1)
    covers = np.append((table.shape == shapes[:, table.tensor]).all(axis=0), False)
    whole: list[bool] = ((np.diff(first) == 1) & covers[first[:-1]]).tolist()
    return whole


def decode(data: bytes) -> Manifest:
    """The manifest in a document, which may be damaged or hostile.

    Raises:
        CorruptCheckpointError: the checksum does not match, or the content breaks a rule; says where.
        UnsupportedVersionError: it is intact, and written by a newer version of the format.
    """
    _check_tail(data)
    head = _parsed(data, _Head)
    if head.format != FORMAT:
        raise CorruptCheckpointError(f"the manifest is of an unknown format {head.format[:100]!r}")
    if head.version > VERSION:
        raise UnsupportedVersionError(
            f"the manifest has format version {head.version}, this library reads up to {VERSION}",
            hint="upgrade flexstore",
        )
    document = _parsed(data, _Document)
    manifest = _without_crcs(document)
    check_layout(manifest)
    return replace(manifest, chunks=_with_crcs(manifest, document))


def _check_tail(data: bytes) -> None:
    body, tail = data[:-_TAIL_LENGTH], data[-_TAIL_LENGTH:]
    expected = _tail(body)
    if tail != expected:
        raise CorruptCheckpointError(
            f"the manifest's checksum does not match: its {len(data)} bytes end with {tail!r}, not with {expected!r}",
            hint="the manifest was damaged, cut short, or edited; restore it from a copy",
        )


def _parsed(data: bytes, kind: type[_S]) -> _S:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"the manifest is not a valid document: {error}") from None


def _without_crcs(document: _Document) -> Manifest:
    infos = tuple(_info(key, tensor) for key, tensor in document.tensors.items())
    return Manifest(
        attempt=document.attempt,
        strategy=document.strategy,
        tensors=infos,
        files=tuple(FileInfo(file.name, file.nbytes, file.frame_crc) for file in document.files),
        chunks=_table(infos, list(document.tensors.values())),
        common={path: from_json(value) for path, value in document.common.items()},
        common_paths={path: tuple(pieces) for path, pieces in document.common_paths.items()},
        created=document.created,
        world_size=document.world_size,
        library=document.library,
    )


def _info(key: str, tensor: _Tensor) -> TensorInfo:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise CorruptCheckpointError(f"unknown dtype {tensor.dtype[:100]!r}", key=key)
    n, ndim = len(tensor.at), len(tensor.shape)
    _check_length(key, "file", tensor.file, n)
    if n != 1 or tensor.offset or tensor.extent:
        _check_length(key, "offset", tensor.offset, n * ndim)
        _check_length(key, "extent", tensor.extent, n * ndim)
    if tensor.fortran and max(tensor.fortran) >= n:
        raise CorruptCheckpointError(f"'fortran' names chunk {max(tensor.fortran)} of {n}", key=key)
    path = None if tensor.path is None else tuple(tensor.path)
    return TensorInfo(key, dtype, tuple(tensor.shape), path, tensor.axis)


def _check_length(key: str, member: str, given: Sequence[int], expected: int) -> None:
    if len(given) != expected:
        raise CorruptCheckpointError(f"{member!r} has {len(given)} numbers, not {expected}", key=key)


def _table(infos: Sequence[TensorInfo], tensors: Sequence[_Tensor]) -> ChunkTable:
    ndims = _ints(len(info.shape) for info in infos)
    counts = _ints(len(tensor.at) for tensor in tensors)
    owner = np.repeat(np.arange(len(infos)), counts)
    shape = padded([info.shape for info in infos], int(ndims.max(initial=0)), 1)[:, owner]
    offset = np.zeros_like(shape)
    stated = _ints(len(tensor.offset) for tensor in tensors) > 0
    axis, row = _places(np.flatnonzero(stated[owner]), ndims[owner])
    offset[axis, row] = _flat(tensor.offset for tensor in tensors)
    shape[axis, row] = _flat(tensor.extent for tensor in tensors)
    fortran = np.zeros(len(owner), np.bool_)
    turned = np.repeat(np.cumsum(counts) - counts, _ints(len(tensor.fortran) for tensor in tensors))
    fortran[turned + _flat(tensor.fortran for tensor in tensors)] = True
    return ChunkTable(
        tensor=owner,
        offset=offset,
        shape=shape,
        file=_flat(tensor.file for tensor in tensors),
        byte_offset=_flat(tensor.at for tensor in tensors),
        fortran=fortran,
        crcs=np.zeros(0, np.uint32),
        crc_start=np.zeros(len(owner) + 1, np.int64),
    )


def _places(rows: Ints, ndims: Ints) -> tuple[Ints, Ints]:
    """Axis and row of each number of a flat list that holds ``ndims[row]`` numbers for each of ``rows``."""
    widths = ndims[rows]
    row = np.repeat(rows, widths)
    return np.arange(len(row)) - np.repeat(np.cumsum(widths) - widths, widths), row


def _with_crcs(manifest: Manifest, document: _Document) -> ChunkTable:
    """The chunks with their checksums, whose number follows from the (checked) sizes of the chunks."""
    table, tensors = manifest.chunks, list(document.tensors.values())
    start = np.concatenate([[0], np.cumsum(block_counts(manifest.chunk_nbytes))]).astype(np.int64)
    expected = np.diff(start[np.searchsorted(table.tensor, np.arange(len(tensors) + 1))]) * 4
    given = _ints(len(tensor.crc) for tensor in tensors)
    if (i := first_true(given != expected)) is not None:
        raise CorruptCheckpointError(f"'crc' has {given[i]} bytes, not {expected[i]}", key=manifest.tensors[i].key)
    crcs = np.frombuffer(b"".join(tensor.crc for tensor in tensors), "<u4").astype(np.uint32, copy=False)
    return replace(table, crcs=crcs, crc_start=start)


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _flat(lists: Iterable[list[int]]) -> Ints:
    return _ints(chain.from_iterable(lists))
