"""The manifest in memory: which tensors a checkpoint holds, and where every box of them lies.

The chunks are columns, not objects: a checkpoint of a large job has millions. `flexstore.core.manifest_json` is the
document on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.dtypes import DType, dtype_named

MANIFEST_NAME = "flexstore.json"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One global tensor.

    Attributes:
        key: its name.
        dtype, shape: of the whole tensor.
        path: the pieces of its place in the saved nested dict, if more than ``(key,)``.
        declared_axis: see `ShardedTensor.declared_axis`.
    """

    key: str
    dtype: DType
    shape: tuple[int, ...]
    path: tuple[str, ...] | None = None
    declared_axis: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A survey sends tens of thousands; the generic way looks up the fields of each.
        return (_tensor_info, (self.key, self.dtype.name, self.shape, self.path, self.declared_axis))


def _tensor_info(
    key: str, dtype: str, shape: tuple[int, ...], path: tuple[str, ...] | None, declared_axis: int | None
) -> TensorInfo:
    return TensorInfo(key, dtype_named(dtype), shape, path, declared_axis)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One object of the checkpoint.

    Attributes:
        name: in the store.
        nbytes: its size in bytes.
        frame_crc: CRC-32C of all its bytes that belong to no chunk (headers, padding), in file order; None if unknown.
    """

    name: str
    nbytes: int
    frame_crc: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a tensor in the store.

    Attributes:
        key: the tensor.
        box: the piece, in global coordinates.
        file: object name.
        byte_offset: where its elements start in the file; they are contiguous, row-major unless ``fortran``.
        crcs: CRC-32C per checksum block (`flexstore.core.checksum`), or None for foreign files.
        fortran: True if the elements are stored column-major.
    """

    key: str
    box: Box
    file: str
    byte_offset: int
    crcs: npt.NDArray[np.uint32] | None = None
    fortran: bool = False


@dataclass(frozen=True)
class ChunkTable:
    """All chunks of a checkpoint as columns of length n, sorted by tensor.

    Boxes have ``ndim`` dimensions, the largest of any tensor: a box of fewer dimensions is padded with trailing
    dimensions of offset 0 and extent 1, which changes neither its elements nor their order.

    Attributes:
        tensor: index into `Manifest.tensors`, ascending.
        offset, shape: int64 ``[ndim, n]``.
        file: index into `Manifest.files`.
        byte_offset: of the first element in the file.
        fortran: True where stored column-major.
        crcs: CRC-32C of all blocks of all chunks, chunk after chunk.
        crc_start: int64 ``[n + 1]``; the CRCs of chunk i are ``crcs[crc_start[i]:crc_start[i + 1]]``; none = unknown.
    """

    tensor: Ints
    offset: Ints
    shape: Ints
    file: Ints
    byte_offset: Ints
    fortran: npt.NDArray[np.bool_]
    crcs: npt.NDArray[np.uint32]
    crc_start: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def ndim(self) -> int:
        return len(self.offset)

    @cached_property
    def size(self) -> Ints:
        """Elements per chunk."""
        size: Ints = np.prod(self.shape, axis=0, dtype=np.int64) if self.ndim else np.ones(len(self), np.int64)
        return size

    def rows_of(self, tensor: int) -> range:
        """The rows of one tensor."""
        lo, hi = np.searchsorted(self.tensor, [tensor, tensor + 1])
        return range(int(lo), int(hi))

    def box(self, row: int, ndim: int) -> Box:
        """The box of a row, of a tensor with ``ndim`` dimensions."""
        return Box(tuple(self.offset[:ndim, row].tolist()), tuple(self.shape[:ndim, row].tolist()))


@dataclass(frozen=True)
class Manifest:
    """Everything there is to know about a checkpoint without reading its data.

    Attributes:
        attempt: id of the save that published it ("" for foreign checkpoints).
        strategy: name of the format.
        tensors, files, chunks: see there.
        common: dotted path → plain value.
        common_paths: dotted path → path pieces, for those that are not just ``(path,)``.
        created: POSIX seconds.
        world_size: ranks that saved it.
        library: name and version of the writer.
    """

    attempt: str
    strategy: str
    tensors: tuple[TensorInfo, ...]
    files: tuple[FileInfo, ...]
    chunks: ChunkTable
    common: Mapping[str, Any] = field(default_factory=dict)
    common_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    created: float = 0.0
    world_size: int = 1
    library: str = ""

    @cached_property
    def index(self) -> dict[str, int]:
        """Tensor key → position in `tensors`."""
        return {tensor.key: i for i, tensor in enumerate(self.tensors)}

    @cached_property
    def itemsize(self) -> Ints:
        """Bytes per element of each chunk."""
        sizes = np.fromiter((t.dtype.itemsize for t in self.tensors), np.int64, len(self.tensors))
        picked: Ints = sizes[self.chunks.tensor] if len(self.tensors) else np.zeros(0, np.int64)
        return picked

    @cached_property
    def chunk_nbytes(self) -> Ints:
        """Bytes of each chunk."""
        return self.chunks.size * self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return int(self.chunk_nbytes.sum())

    @property
    def is_foreign(self) -> bool:
        """True if another program wrote it: there are no checksums then."""
        return not self.attempt

    def chunks_of(self, key: str) -> list[Chunk]:
        """The chunks of one tensor as objects."""
        tensor = self.index[key]
        table = self.chunks
        ndim = len(self.tensors[tensor].shape)
        return [
            Chunk(
                key,
                table.box(row, ndim),
                self.files[int(table.file[row])].name,
                int(table.byte_offset[row]),
                table.crcs[table.crc_start[row] : table.crc_start[row + 1]],
                bool(table.fortran[row]),
            )
            for row in table.rows_of(tensor)
        ]


def build_chunk_table(tensors: Sequence[TensorInfo], files: Sequence[FileInfo], chunks: Iterable[Chunk]) -> ChunkTable:
    """Columns from chunk objects (for foreign formats and tests; a save builds its columns directly)."""
    position = {tensor.key: i for i, tensor in enumerate(tensors)}
    number = {file.name: i for i, file in enumerate(files)}
    rows = sorted(chunks, key=lambda chunk: position[chunk.key])
    ndim = max((len(t.shape) for t in tensors), default=0)
    counts = [0 if chunk.crcs is None else len(chunk.crcs) for chunk in rows]
    known = [chunk.crcs for chunk in rows if chunk.crcs is not None]
    return ChunkTable(
        tensor=np.array([position[c.key] for c in rows], np.int64),
        offset=padded([c.box.offset for c in rows], ndim, 0),
        shape=padded([c.box.shape for c in rows], ndim, 1),
        file=np.array([number[c.file] for c in rows], np.int64),
        byte_offset=np.array([c.byte_offset for c in rows], np.int64),
        fortran=np.array([c.fortran for c in rows], np.bool_),
        crcs=np.concatenate(known).astype(np.uint32) if known else np.zeros(0, np.uint32),
        crc_start=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
    )


def padded(rows: Sequence[Sequence[int]], ndim: int, fill: int) -> Ints:
    """Tuples of up to ``ndim`` ints as columns ``[ndim, n]``, trailing dimensions filled up.

    Raises:
        OverflowError: a number does not fit 64 bits.
    """
    flat = [n for row in rows for n in (*row, *(fill,) * (ndim - len(row)))]
    return np.array(flat, np.int64).reshape(len(rows), ndim).T.copy()
