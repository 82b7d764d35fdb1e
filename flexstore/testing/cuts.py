"""Tensors cut over ranks in every way that training frameworks know, with contents that every reader can recompute.

The ``pick_*`` functions build a value from choices; where the choices come from is the caller's: ``random.Random``'s
``randint`` in a benchmark, Hypothesis in a property test (`flexstore.testing.generators`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES, DType
from flexstore.core.tensor import ShardedTensor

Pick: TypeAlias = Callable[[int, int], int]
"""``pick(low, high)`` chooses an integer, both ends included."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank holds of a tensor: a block in global coordinates, or a flattened half-open range of it."""

    block: Box
    flattened_range: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Elements held."""
        if self.flattened_range is None:
            return self.block.size
        start, stop = self.flattened_range
        return stop - start


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor cut over ranks. The shares of all ranks together cover it; equal ones are replicas.

    Attributes:
        key: its name.
        shape: its global shape.
        dtype: its element type.
        ranks: the shares of each rank, in any order; a rank may hold none, or empty ones.
    """

    key: str
    shape: tuple[int, ...]
    dtype: DType
    ranks: tuple[tuple[Share, ...], ...]

    def filled(self, rank: int) -> list[ShardedTensor]:
        """The shards of a rank with the contents that `expected` promises."""
        return [self._shard(share, self._content(share)) for share in self.ranks[rank]]

    def zeroed(self, rank: int) -> list[ShardedTensor]:
        """The shards of a rank to load into: all zeros, in memory of their own."""
        return [self._shard(share, np.zeros_like(self._content(share))) for share in self.ranks[rank]]

    def _content(self, share: Share) -> npt.NDArray[Any]:
        whole = expected(self.key, self.shape, self.dtype)
        block = np.asarray(whole[share.block.within((0,) * whole.ndim)])  # not a scalar if it is 0-d
        if share.flattened_range is None:
            return np.array(block, order="C")
        start, stop = share.flattened_range
        return block.ravel()[start:stop].copy()

    def _shard(self, share: Share, tensor: npt.NDArray[Any]) -> ShardedTensor:
        return ShardedTensor(
            self.key,
            tensor,
            local_shape=share.block.shape,
            global_shape=self.shape,
            global_offset=share.block.offset,
            is_flattened=share.flattened_range is not None,
            flattened_range=share.flattened_range,
        )


def expected(key: str, shape: Sequence[int], dtype: DType | str) -> npt.NDArray[Any]:
    """The contents that a test tensor must have: a function of the arguments alone.

    Floats are normally distributed, so they are finite and survive casts; integers fill their range; bools are mixed.
    """
    numpy_dtype = (DTYPES[dtype] if isinstance(dtype, str) else dtype).numpy
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode())))
    shape = tuple(shape)
    if numpy_dtype.kind in "iu":
        limits = np.iinfo(numpy_dtype)
        return np.asarray(generator.integers(limits.min, limits.max, shape, numpy_dtype, endpoint=True))
    if numpy_dtype.kind == "b":
        return np.asarray(generator.integers(0, 2, shape)).astype(np.bool_)
    values = np.asarray(generator.standard_normal(shape))
    if numpy_dtype.kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return values.astype(numpy_dtype)


def pick_shape(pick: Pick, max_ndim: int = 4, max_dim: int = 6) -> tuple[int, ...]:
    """A shape of 0 to ``max_ndim`` dimensions of 1 to ``max_dim``."""
    return tuple(pick(1, max_dim) for _ in range(pick(0, max_ndim)))


def pick_tiling(pick: Pick, shape: Sequence[int], pieces: int) -> list[Box]:
    """Cut a shape into at most ``pieces`` non-empty boxes by guillotine cuts; they tile it exactly."""
    boxes = [Box.whole(shape)]
    for _ in range(pieces - 1):
        splittable = [box for box in boxes if any(extent > 1 for extent in box.shape)]
        if not splittable:
            break
        box = splittable[pick(0, len(splittable) - 1)]
        boxes.remove(box)
        boxes.extend(_halves(pick, box))
    return boxes


def pick_ranges(pick: Pick, size: int, count: int) -> list[tuple[int, int]]:
    """Cut ``[0, size)`` into ``count`` consecutive half-open ranges, uneven, some of them perhaps empty."""
    bounds = [0, *sorted(pick(0, size) for _ in range(count - 1)), size]
    return list(pairwise(bounds))


def pick_cut(pick: Pick, key: str, shape: Sequence[int], dtype: DType, world_size: int) -> Cut:
    """Cut a tensor over ranks: blocks or flattened ranges of blocks, replicas, empty shares, ranks without any."""
    ranks: list[list[Share]] = [[] for _ in range(world_size)]
    for block in pick_tiling(pick, shape, pick(1, 2 * world_size)):
        for share in _shares(pick, block, world_size):
            for rank in _holders(pick, world_size):
                ranks[rank].append(share)
    return Cut(key, tuple(shape), dtype, tuple(map(tuple, ranks)))


def _halves(pick: Pick, box: Box) -> tuple[Box, Box]:
    axes = [axis for axis, extent in enumerate(box.shape) if extent > 1]
    axis = axes[pick(0, len(axes) - 1)]
    at = pick(1, box.shape[axis] - 1)
    step = tuple(at if a == axis else 0 for a in range(box.ndim))
    head = tuple(at if a == axis else extent for a, extent in enumerate(box.shape))
    tail = tuple(extent - by for extent, by in zip(box.shape, step, strict=True))
    return Box(box.offset, head), Box(box.offset, tail).shifted(step)


def _shares(pick: Pick, block: Box, world_size: int) -> Iterator[Share]:
    if pick(0, 2):
        yield Share(block)
        return
    for bounds in pick_ranges(pick, math.prod(block.shape), pick(1, world_size)):
        yield Share(block, bounds)


def _holders(pick: Pick, world_size: int) -> set[int]:
    """One rank, or with luck several (the replicas)."""
    replicas = 1 if pick(0, 2) else pick(1, world_size)
    return {pick(0, world_size - 1) for _ in range(replicas)}
