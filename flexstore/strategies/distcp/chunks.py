"""Joins what the metadata says with where the arrays really lie.

Every stored array is checked against its shard: type, shape, extent. A shard whose file is missing, or that its file
does not hold, makes the whole directory unreadable: it is a torn save, and nothing of another save may stand in for it
(D12).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from flexstore.backends.base import Store
from flexstore.core.box import flat_range_boxes
from flexstore.core.dtypes import DTYPES, DType
from flexstore.core.manifest import Chunk, FileInfo
from flexstore.errors import CorruptCheckpointError
from flexstore.strategies.distcp.metadata import SavedShard, SavedState
from flexstore.strategies.distcp.payloads import StoredArray, index_file

_CARRIERS = {
    "bfloat16": DTYPES["uint16"],
    "float8_e4m3fn": DTYPES["int8"],
    "float8_e5m2": DTYPES["int8"],
}
_SHOWN = 8


def carrier_of(dtype: DType) -> DType:
    """The integer type of the same width as which a pickle stores a type that numpy does not know; else itself."""
    return _CARRIERS.get(dtype.name, dtype)


def data_files(state: SavedState, sizes: Mapping[str, int]) -> tuple[FileInfo, ...]:
    """The data files of a checkpoint, sorted by name.

    Args:
        state: from its metadata.
        sizes: bytes of every object in the store.

    Raises:
        CorruptCheckpointError: some of them are missing.
    """
    names = sorted({shard.file for shard in state.shards})
    missing = [name for name in names if name not in sizes]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        raise CorruptCheckpointError(
            f"{len(missing)} of {len(names)} data files are missing: {shown}",
            file=missing[0],
            hint="the save was interrupted, or the copy is incomplete; use another checkpoint",
        )
    return tuple(FileInfo(name, sizes[name]) for name in names)


def chunks_of(store: Store, state: SavedState, files: tuple[FileInfo, ...]) -> Iterator[Chunk]:
    """The chunks of a checkpoint; empty shards have none. Reads the headers of all ``files``, several at a time.

    Raises:
        CorruptCheckpointError: a file does not hold what the metadata says.
    """
    with ThreadPoolExecutor(store.io.parallelism) as pool:
        found = pool.map(lambda file: index_file(store, file.name, file.nbytes), files)
        index = {file.name: arrays for file, arrays in zip(files, found, strict=True)}
    for shard in state.shards:
        yield from _chunks(shard, index[shard.file])


def _chunks(shard: SavedShard, arrays: Mapping[str, StoredArray]) -> Iterator[Chunk]:
    array = arrays.get(shard.key)
    if array is None:
        raise CorruptCheckpointError("a data file lacks a tensor", key=shard.key, box=shard.block, file=shard.file)
    shape = shard.block.shape if shard.flat is None else (shard.flat[1] - shard.flat[0],)
    if array.shape != shape or array.dtype not in (shard.dtype.numpy, carrier_of(shard.dtype).numpy):
        raise CorruptCheckpointError(
            f"the file holds an array of shape {array.shape} and type {array.dtype}, the metadata says shape {shape} "
            f"and type {shard.dtype}",
            key=shard.key,
            box=shard.block,
            file=shard.file,
            hint="metadata and data are of different saves; use another checkpoint",
        )
    if shard.flat is not None:
        for box, position in flat_range_boxes(shard.block.shape, *shard.flat):
            start = array.offset + position * array.dtype.itemsize
            yield Chunk(shard.key, box.shifted(shard.block.offset), shard.file, start)
    elif not shard.block.is_empty:
        yield Chunk(shard.key, shard.block, shard.file, array.offset, fortran=array.fortran)
