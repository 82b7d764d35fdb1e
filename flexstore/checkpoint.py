"""`open_checkpoint`: look at a checkpoint, read parts of it, check it, delete it.

Needs no framework, no process group and no devices (X7): numpy arrays come out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import EllipsisType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from flexstore.backends import open_store
from flexstore.backends.base import Store
from flexstore.collector import collector_paused
from flexstore.commit import read_published, remove_files, unpublish
from flexstore.core.box import Box
from flexstore.core.dtypes import DType
from flexstore.core.manifest import Chunk, Manifest, TensorInfo
from flexstore.core.region import HostArray, Region
from flexstore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidStateError,
    PluginError,
    UnknownKeyError,
)
from flexstore.pipeline.reading import ReadOptions
from flexstore.pipeline.verifying import find_damage
from flexstore.planning.load import plan_load
from flexstore.planning.tiling import check_tiling
from flexstore.strategies import detect_strategy, strategy_named
from flexstore.strategies.base import LoadContext, LoadStrategy, Strategy

Index: TypeAlias = slice | int | EllipsisType
_SHOWN = 20


def open_checkpoint(
    url: str | PathLike[str],
    *,
    strategy: str | Strategy | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Open a published checkpoint, flexstore's own or a foreign one (its format is detected).

    Args:
        url: path or URL of the checkpoint.
        strategy: naming one only asserts the format; an object is needed where its name is not registered.
        storage_options: for the backend.

    Raises:
        CheckpointNotFoundError: nothing is published there.
        CorruptCheckpointError: its metadata is damaged, hostile, or does not cover every element.
        UnsupportedVersionError: it needs a newer flexstore.
        PluginError: it is in another format, or the format is not known here.
    """
    store = open_store(url, storage_options)
    return Checkpoint(store, *open_manifest(store, strategy))


def delete_checkpoint(url: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Remove whatever flexstore published under a URL, also if it is damaged; no error if there is nothing.

    The files of a checkpoint whose manifest is damaged are not known; `flexstore.retention.collect_garbage` finds them.
    """
    unpublish(open_store(url, storage_options))


def open_manifest(store: Store, strategy: str | Strategy | None = None) -> tuple[Manifest, LoadStrategy]:
    """The manifest of what is published in a store, checked, and the strategy that reads its data."""
    with collector_paused():
        manifest = read_published(store)
        foreign = detect_strategy(store) if manifest is None else None
        if foreign is not None:
            manifest = foreign.read_manifest(store)
        if manifest is None:
            raise CheckpointNotFoundError(
                f"no checkpoint is published at {store.url}",
                hint="an interrupted save publishes nothing; check the path",
            )
        table = manifest.chunks
        check_tiling(manifest.tensors, table.tensor, table.offset, table.shape, error=CorruptCheckpointError)
    return manifest, reader_of(manifest, strategy)


def reader_of(manifest: Manifest, strategy: str | Strategy | None) -> LoadStrategy:
    """The strategy that reads a checkpoint; a named one must be the one it was written with."""
    if strategy is None:
        return strategy_named(manifest.strategy)
    asserted = strategy_named(strategy)
    if asserted.name != manifest.strategy:
        raise PluginError(
            f"the checkpoint is in the format '{manifest.strategy}', not '{asserted.name}'",
            hint="leave strategy out: the format is detected",
        )
    return asserted


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `Checkpoint.verify` read: bytes, seconds, and how many files of the checkpoint have no checksums."""

    nbytes: int
    seconds: float
    unchecked_files: int


class Checkpoint(Mapping[str, "StoredTensor"]):
    """A published checkpoint: a mapping from tensor name to `StoredTensor`.

    Attributes:
        manifest: everything known about it.
        store: where it lies.
    """

    def __init__(self, store: Store, manifest: Manifest, strategy: LoadStrategy) -> None:
        self.store = store
        self.manifest = manifest
        self._strategy = strategy

    def __getitem__(self, key: str) -> StoredTensor:
        try:
            info = self.manifest.tensors[self.manifest.index[key]]
        except KeyError:
            raise UnknownKeyError(f"the checkpoint at {self.url} has no tensor '{key}'", key=key) from None
        return StoredTensor(self, info)

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.index)

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def strategy(self) -> str:
        """Name of the format."""
        return self.manifest.strategy

    @property
    def common(self) -> Mapping[str, Any]:
        """Plain values by dotted path."""
        return self.manifest.common

    def info(self) -> dict[str, Any]:
        """A summary for people: format, sizes, when and by what it was written, whether it has checksums."""
        manifest = self.manifest
        return {
            "url": self.url,
            "strategy": manifest.strategy,
            "foreign": manifest.is_foreign,
            "checksums": bool(manifest.chunks.crcs.size),
            "tensors": len(manifest.tensors),
            "chunks": len(manifest.chunks),
            "plain_values": len(manifest.common),
            "files": len(manifest.files),
            "nbytes": manifest.nbytes,
            "world_size": manifest.world_size,
            "created": manifest.created,
            "library": manifest.library,
            "attempt": manifest.attempt,
        }

    def verify(self) -> VerifyReport:
        """Read every byte and check it.

        Raises:
            CorruptCheckpointError: naming every damaged file, byte range and tensor.
        """
        start = time.perf_counter()
        damage = find_damage(self.manifest, self.store)
        if damage:
            more = f"\n  … and {len(damage) - _SHOWN} more" if len(damage) > _SHOWN else ""
            raise CorruptCheckpointError(
                f"{len(damage)} damaged range(s) in the checkpoint at {self.url}:\n"
                + "\n".join(f"  {d}" for d in damage[:_SHOWN])
                + more,
                key=damage[0].key,
                file=damage[0].file,
                hint="use another checkpoint",
            )
        files = self.manifest.files
        return VerifyReport(
            sum(f.nbytes for f in files), time.perf_counter() - start, sum(f.frame_crc is None for f in files)
        )

    def delete(self) -> None:
        """Remove the checkpoint: first what makes it exist, then its data.

        Raises:
            CheckpointNotFoundError: it was replaced or removed since it was opened; nothing is removed.
        """
        if self.manifest.is_foreign:
            remove_files(self.store, self.manifest)
        else:
            unpublish(self.store, self.manifest.attempt)

    def close(self) -> None:
        """Release what the storage holds open."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read_into(self, regions: Sequence[Region], *, verify: bool = True) -> None:
        """Fill regions of this process's memory; see `flexstore.load` for whole states."""
        plan = plan_load(self.manifest, [(region.key, region.box) for region in regions])
        self._strategy.read(plan, regions, LoadContext(self.store, ReadOptions(verify=verify)))


class StoredTensor:
    """One tensor of a checkpoint. Nothing is read until `read`."""

    def __init__(self, checkpoint: Checkpoint, info: TensorInfo) -> None:
        self._checkpoint = checkpoint
        self._info = info

    @property
    def key(self) -> str:
        return self._info.key

    @property
    def shape(self) -> tuple[int, ...]:
        return self._info.shape

    @property
    def dtype(self) -> DType:
        return self._info.dtype

    @property
    def nbytes(self) -> int:
        return Box.whole(self.shape).size * self.dtype.itemsize

    @property
    def chunks(self) -> list[Chunk]:
        """Where its pieces lie."""
        return self._checkpoint.manifest.chunks_of(self.key)

    def read(self, *index: Index, verify: bool = True) -> npt.NDArray[Any]:
        """Read all of it, or a rectangular part.

        Args:
            index: as in numpy's basic indexing: slices without a step, integers (which drop their axis), ``...``.
                ``tensor.read(slice(0, 4), 2)`` is ``tensor.read()[0:4, 2]``, but reads only what that needs.
            verify: check the checksums.

        Returns:
            A fresh array (bfloat16 and 8-bit floats as ml_dtypes types).

        Raises:
            InvalidStateError: the index does not fit the shape.
            CorruptCheckpointError: the bytes are not what was written.
        """
        box, kept = _box_of(index, self.shape, self.key)
        out = np.empty(box.shape, self.dtype.numpy)
        if out.size:
            region = Region(self.key, box, HostArray(out, self.dtype))
            self._checkpoint.read_into([region], verify=verify)
        return out.reshape(kept)

    def __repr__(self) -> str:
        return f"StoredTensor({self.key!r}, shape={self.shape}, dtype={self.dtype})"


def _box_of(index: Sequence[Index], shape: tuple[int, ...], key: str) -> tuple[Box, tuple[int, ...]]:
    """The box that a basic index selects, and the shape without the axes that integers drop."""
    full = _expanded(index, len(shape), key)
    offset, extent, kept = [], [], []
    for axis, (part, dim) in enumerate(zip(full, shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = part.indices(dim)
            if step != 1:
                raise InvalidStateError(f"a slice with step {step} along axis {axis}", key=key)
            kept.append(max(0, stop - start))
        else:
            start = part + dim if part < 0 else part
            if not 0 <= start < dim:
                raise InvalidStateError(f"index {part} is out of range along axis {axis} of {shape}", key=key)
            stop = start + 1
        offset.append(start)
        extent.append(max(0, stop - start))
    return Box(tuple(offset), tuple(extent)), tuple(kept)


def _expanded(index: Sequence[Index], ndim: int, key: str) -> list[slice | int]:
    given = list(index) if Ellipsis in index else [*index, Ellipsis]
    if given.count(Ellipsis) > 1 or len(given) - 1 > ndim:
        raise InvalidStateError(f"{len(index)} indices for {ndim} dimensions", key=key)
    at = given.index(Ellipsis)
    full = [*given[:at], *[slice(None)] * (ndim - len(given) + 1), *given[at + 1 :]]
    return [part for part in full if not isinstance(part, EllipsisType)]
