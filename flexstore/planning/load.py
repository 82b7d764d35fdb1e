"""Load planning: which part of which chunk feeds which wanted region. Pure and vectorised.

`plan_load` intersects boxes only; `flexstore.planning.spans` turns the overlaps into byte ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.manifest import Ints, Manifest, padded
from flexstore.errors import CorruptCheckpointError

_PAIRS_AT_ONCE = 1 << 20  # bounds the planner's own memory: about 100 bytes per pair


@dataclass(frozen=True)
class Overlaps:
    """Non-empty common parts of wanted regions and chunks, as columns of length m, sorted by region.

    Attributes:
        region: index of the wanted region.
        chunk: row of `Manifest.chunks`.
        offset, shape: int64 ``[ndim, m]``, the common box in global coordinates, padded as in `ChunkTable`.
    """

    region: Ints
    chunk: Ints
    offset: Ints
    shape: Ints

    def __len__(self) -> int:
        return len(self.region)

    @property
    def size(self) -> Ints:
        """Elements per overlap."""
        return _sizes(self.shape)

    def box(self, i: int, ndim: int) -> Box:
        """The box of overlap ``i`` of a tensor with ``ndim`` dimensions."""
        return Box(tuple(self.offset[:ndim, i].tolist()), tuple(self.shape[:ndim, i].tolist()))


@dataclass(frozen=True)
class LoadPlan:
    """What one rank reads.

    Attributes:
        manifest: of the checkpoint.
        wanted_shape: int64 ``[ndim, n]``, the extents of the wanted regions.
        wanted_offset: int64 ``[ndim, n]``, their offsets.
        overlaps: the parts to read; together they cover every wanted region exactly once.
    """

    manifest: Manifest
    wanted_offset: Ints
    wanted_shape: Ints
    overlaps: Overlaps


def plan_load(manifest: Manifest, wanted: Sequence[tuple[str, Box]]) -> LoadPlan:
    """Find the chunks that feed the wanted regions.

    Args:
        manifest: whose chunks tile every tensor.
        wanted: ``(key, box)`` per region: a key of the manifest, a non-empty box inside the tensor.

    Raises:
        CorruptCheckpointError: some wanted elements are in no chunk (D14).
    """
    ndim = manifest.chunks.ndim
    offset = padded([box.offset for _, box in wanted], ndim, 0)
    shape = padded([box.shape for _, box in wanted], ndim, 1)
    tensor = np.fromiter((manifest.index[key] for key, _ in wanted), np.int64, len(wanted))
    overlaps = find_overlaps(manifest, tensor, offset, shape)
    _prove_coverage(wanted, shape, overlaps)
    return LoadPlan(manifest, offset, shape, overlaps)


def find_overlaps(manifest: Manifest, tensor: Ints, offset: Ints, shape: Ints) -> Overlaps:
    """All overlaps of regions (a tensor index and a padded box each) with chunks, whether they cover or not."""
    table = manifest.chunks
    first = np.searchsorted(table.tensor, tensor, side="left")
    count = np.searchsorted(table.tensor, tensor, side="right") - first
    parts = [_overlaps_of(manifest, rows, first, count, offset, shape) for rows in _slices(count)]
    if not parts:
        none = np.zeros(0, np.int64)
        return Overlaps(none, none, np.zeros((table.ndim, 0), np.int64), np.zeros((table.ndim, 0), np.int64))
    return Overlaps(
        np.concatenate([p.region for p in parts]),
        np.concatenate([p.chunk for p in parts]),
        np.concatenate([p.offset for p in parts], axis=1),
        np.concatenate([p.shape for p in parts], axis=1),
    )


def _slices(count: Ints) -> Iterator[slice]:
    """Cut the regions so that each slice makes about `_PAIRS_AT_ONCE` pairs with chunks."""
    total = np.cumsum(count)
    start = 0
    while start < len(count):
        before = int(total[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + _PAIRS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


def _overlaps_of(manifest: Manifest, rows: slice, first: Ints, count: Ints, offset: Ints, shape: Ints) -> Overlaps:
    table = manifest.chunks
    counts = count[rows]
    region = np.repeat(np.arange(rows.start, rows.stop), counts)
    within = np.arange(len(region)) - np.repeat(np.cumsum(counts) - counts, counts)
    chunk = np.repeat(first[rows], counts) + within
    lows: list[Ints] = []
    extents: list[Ints] = []
    for axis in range(table.ndim):
        chunk_lo, wanted_lo = table.offset[axis][chunk], offset[axis][region]
        low = np.maximum(chunk_lo, wanted_lo)
        high = np.minimum(chunk_lo + table.shape[axis][chunk], wanted_lo + shape[axis][region])
        keep = low < high
        if not keep.all():
            region, chunk, low, high = region[keep], chunk[keep], low[keep], high[keep]
            lows, extents = [a[keep] for a in lows], [a[keep] for a in extents]
        lows.append(low)
        extents.append(high - low)
    return Overlaps(region, chunk, _stacked(lows, len(region)), _stacked(extents, len(region)))


def _stacked(columns: list[Ints], length: int) -> Ints:
    return np.stack(columns) if columns else np.zeros((0, length), np.int64)


def _sizes(shape: Ints) -> Ints:
    sizes: Ints = np.prod(shape, axis=0, dtype=np.int64)
    return sizes if len(shape) else np.ones(shape.shape[1:], np.int64)


def _prove_coverage(wanted: Sequence[tuple[str, Box]], shape: Ints, overlaps: Overlaps) -> None:
    """Chunks of one tensor are disjoint, so a region is covered if the sizes of its overlaps add up to its own."""
    covered = np.zeros(len(wanted), np.int64)
    np.add.at(covered, overlaps.region, overlaps.size)
    wrong: npt.NDArray[np.intp] = np.flatnonzero(covered != _sizes(shape))
    if wrong.size:
        key, box = wanted[int(wrong[0])]
        raise CorruptCheckpointError(
            f"the checkpoint does not hold every element of {wrong.size} wanted region(s), the first is '{key}' {box}",
            key=key,
            box=box,
            hint="the checkpoint is incomplete; choose another",
        )
