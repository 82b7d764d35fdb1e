"""What is true of every manifest, checked in one pass of numpy over its columns.

The same rules hold for a document that was read and for one about to be written, so that what is published can be
read. They make the columns safe to compute with: no sum or product of them leaves 64 bits, no chunk leaves its tensor
or its file, and no byte belongs to two chunks. Whether the chunks of a tensor tile it is not checked here
(`flexstore.planning.tiling`), nor are any stored bytes looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from flexstore.core.checksum import block_count
from flexstore.core.manifest import MANIFEST_NAME, Ints, Manifest, padded
from flexstore.core.names import is_safe_name
from flexstore.errors import CheckpointError, CorruptCheckpointError

MAX_DIM = 1 << 62
"""Largest extent, byte offset and file size: the sum of two still fits 64 bits without a sign."""

MAX_NDIM = 64
"""Most dimensions of a tensor (numpy's limit)."""

_MAX_NBYTES = (1 << 63) - 1


def is_addressable(shape: Sequence[int], itemsize: int) -> bool:
    """True if a tensor of that shape can exist: not negative, few enough dimensions, byte strides within 63 bits.

    Extents of zero do not excuse the others, as in numpy.
    """
    return (
        len(shape) <= MAX_NDIM
        and min(shape, default=0) >= 0
        and max(shape, default=0) <= MAX_DIM
        and math.prod(dim or 1 for dim in shape) * itemsize <= _MAX_NBYTES
    )


def check_layout(manifest: Manifest, error: type[CheckpointError] = CorruptCheckpointError) -> None:
    """Check files, tensors and chunks, but not the number of their checksums.

    Args:
        manifest: its columns have one length, and `ChunkTable.tensor` is valid.
        error: class to raise.

    Raises:
        CorruptCheckpointError: (or ``error``) naming the tensor or file.
    """
    _check_files(manifest, error)
    _check_tensors(manifest, error)
    _check_boxes(manifest, error)
    _check_extents(manifest, error)
    _check_overlaps(manifest, error)


def check_crcs(manifest: Manifest, error: type[CheckpointError] = CorruptCheckpointError) -> None:
    """Check that every chunk has one checksum per block, or none in a foreign checkpoint.

    Args:
        manifest: one that `check_layout` accepts.
        error: class to raise.

    Raises:
        CorruptCheckpointError: (or ``error``) naming the tensor.
    """
    given = np.diff(manifest.chunks.crc_start)
    expected = np.zeros_like(given) if manifest.is_foreign else block_counts(manifest.chunk_nbytes)
    if (row := first_true(given != expected)) is not None:
        raise error(
            f"a chunk of {manifest.chunk_nbytes[row]} bytes has {given[row]} checksums, not {expected[row]}",
            key=_key(manifest, row),
        )


def _check_files(manifest: Manifest, error: type[CheckpointError]) -> None:
    names = [file.name for file in manifest.files]
    for file in manifest.files:
        if not is_safe_name(file.name) or file.name == MANIFEST_NAME:
            raise error("the manifest lists a file of a forbidden name", file=file.name)
        if not 0 <= file.nbytes <= MAX_DIM:
            raise error(f"the manifest lists a file of {file.nbytes} bytes", file=file.name)
    _check_distinct(names, "file", error)


def _check_tensors(manifest: Manifest, error: type[CheckpointError]) -> None:
    for tensor in manifest.tensors:
        if not is_addressable(tensor.shape, tensor.dtype.itemsize):
            raise error(f"no tensor can have the shape {list(tensor.shape)} of {tensor.dtype}", key=tensor.key)
        if tensor.declared_axis is not None and not 0 <= tensor.declared_axis < len(tensor.shape):
            raise error(f"axis {tensor.declared_axis} of a tensor of shape {list(tensor.shape)}", key=tensor.key)
    _check_distinct([tensor.key for tensor in manifest.tensors], "tensor", error)


def _check_distinct(names: Iterable[str], what: str, error: type[CheckpointError]) -> None:
    name, times = next(iter(Counter(names).most_common(1)), ("", 1))
    if times > 1:
        raise error(f"the manifest lists the {what} {name!r} {times} times")


def _check_boxes(manifest: Manifest, error: type[CheckpointError]) -> None:
    table = manifest.chunks
    room = padded([tensor.shape for tensor in manifest.tensors], table.ndim, 1)[:, table.tensor]
    # Written so that nothing is added: an offset may be anything up to 2**63.
    bad = (table.offset < 0) | (table.shape < 1) | (table.shape > room) | (table.offset > room - table.shape)
    row = first_true(np.logical_or.reduce(bad))
    if row is not None:
        tensor = manifest.tensors[int(table.tensor[row])]
        offset, shape = table.offset[:, row].tolist(), table.shape[:, row].tolist()
        raise error(
            f"a chunk is empty or leaves its tensor of shape {list(tensor.shape)}: offset {offset}, shape {shape}",
            key=tensor.key,
        )


def _check_extents(manifest: Manifest, error: type[CheckpointError]) -> None:
    table = manifest.chunks
    row = first_true((table.file < 0) | (table.file >= len(manifest.files)))
    if row is not None:
        raise error(f"a chunk lies in file {table.file[row]} of {len(manifest.files)}", key=_key(manifest, row))
    sizes = np.fromiter((file.nbytes for file in manifest.files), np.int64, len(manifest.files))
    row = first_true((table.byte_offset < 0) | (table.byte_offset > sizes[table.file] - manifest.chunk_nbytes))
    if row is not None:
        raise _misplaced(manifest, row, "leaves its file", error)


def _check_overlaps(manifest: Manifest, error: type[CheckpointError]) -> None:
    table = manifest.chunks
    order = np.lexsort((table.byte_offset, table.file))
    file, start = table.file[order], table.byte_offset[order]
    stop = start + manifest.chunk_nbytes[order]
    row = first_true((file[1:] == file[:-1]) & (start[1:] < stop[:-1]))
    if row is not None:
        raise _misplaced(manifest, int(order[row + 1]), "overlaps another chunk", error)


def first_true(flags: npt.NDArray[np.bool_]) -> int | None:
    """Where the first True is, if any is."""
    return int(flags.argmax()) if flags.any() else None


def block_counts(nbytes: Ints) -> Ints:
    """`block_count` of each of many chunks."""
    sizes, which = np.unique(nbytes, return_inverse=True)
    counts: Ints = np.fromiter(map(block_count, sizes.tolist()), np.int64, len(sizes))[which]
    return counts


def _misplaced(manifest: Manifest, row: int, what: str, error: type[CheckpointError]) -> CheckpointError:
    file = manifest.files[int(manifest.chunks.file[row])]
    start = int(manifest.chunks.byte_offset[row])
    return error(
        f"a chunk {what}: {manifest.chunk_nbytes[row]} bytes at byte {start} of {file.nbytes}",
        key=_key(manifest, row),
        file=file.name,
    )


def _key(manifest: Manifest, row: int) -> str:
    return manifest.tensors[int(manifest.chunks.tensor[row])].key
