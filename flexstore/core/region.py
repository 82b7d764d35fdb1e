"""Pieces of tensors in this rank's memory, seen as host memory whatever device they live on.

A `LocalArray` is one framework tensor; a `Region` is one box of a named global tensor. Plain values over numpy: the
adapters in `flexstore.frameworks` make them, the pipeline moves their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box, flat_range_boxes
from flexstore.core.dtypes import DType
from flexstore.core.tensor import ShardedTensor

Index: TypeAlias = tuple[slice, ...]
Array: TypeAlias = npt.NDArray[Any]


class LocalArray(Protocol):
    """A tensor in this rank's memory.

    ``host`` is a zero-copy numpy view (any strides; writable if the tensor is) where the elements are in host memory,
    else None; then `fetch` and `store` copy between device and host, only the part that is asked for.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def host(self) -> Array | None: ...

    def fetch(self, index: Index) -> Array:
        """The elements at ``index`` as a host array: a view if `host` is not None, else a fresh copy."""
        ...

    def store(self, index: Index, values: Array) -> None:
        """Write host ``values`` (same dtype, shape of ``index``) into the tensor."""
        ...


@dataclass(frozen=True, slots=True)
class HostArray:
    """A `LocalArray` over numpy memory."""

    host: Array
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    def fetch(self, index: Index) -> Array:
        return self.host[index]

    def store(self, index: Index, values: Array) -> None:
        self.host[index] = values


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A `LocalArray` over device memory.

    Args:
        shape, dtype: of the tensor.
        read: copies the elements at an index into a fresh host array.
        write: copies a host array to an index.
    """

    shape: tuple[int, ...]
    dtype: DType
    read: Callable[[Index], Array]
    write: Callable[[Index, Array], None]
    host: None = None

    def fetch(self, index: Index) -> Array:
        return self.read(index)

    def store(self, index: Index, values: Array) -> None:
        self.write(index, values)


@dataclass(frozen=True, slots=True)
class Region:
    """A non-empty box of a named global tensor, held in this rank's memory.

    Attributes:
        key: name of the global tensor.
        box: the box, in global coordinates.
        array: the memory; if ``position`` is None its shape is ``box.shape``, else the box is the row-major run of
            ``box.size`` elements that starts at ``position`` of the flattened array.
    """

    key: str
    box: Box
    array: LocalArray
    position: int | None = None

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        return self.box.size * self.array.dtype.itemsize

    def host(self) -> Array | None:
        """A zero-copy view of shape ``box.shape``, or None where the memory is not the host's."""
        host = self.array.host
        if host is None or self.position is None:
            return host
        return host[self.position : self.position + self.box.size].reshape(self.box.shape)

    def fetch(self, part: Box) -> Array:
        """The elements of ``part`` (global coordinates, inside ``box``) as a host array of shape ``part.shape``."""
        view = self.host()
        if view is not None:
            return view[part.within(self.box.offset)]
        if self.position is None:
            return self.array.fetch(part.within(self.box.offset))
        values = np.empty(part.shape, self.dtype.numpy)
        for run, index in self._runs(part):
            values[run.within(part.offset)] = self.array.fetch(index).reshape(run.shape)
        return values

    def store(self, part: Box, values: Array) -> None:
        """Write host ``values`` of shape ``part.shape`` at ``part`` (global coordinates, inside ``box``)."""
        view = self.host()
        if view is not None:
            view[part.within(self.box.offset)] = values
        elif self.position is None:
            self.array.store(part.within(self.box.offset), values)
        else:
            for run, index in self._runs(part):
                self.array.store(index, values[run.within(part.offset)].reshape(-1))

    def _runs(self, part: Box) -> Iterator[tuple[Box, Index]]:
        """Cut ``part`` into boxes that are one run of the flattened memory each, with their place there."""
        axis = next((a for a, n in enumerate(part.shape) if n > 1), part.ndim)
        if part.shape[axis + 1 :] == self.box.shape[axis + 1 :]:
            start = int(self.position or 0) + _ravel(part, self.box)
            yield part, (slice(start, start + part.size),)
            return
        for i in range(part.shape[axis]):
            offset, shape = list(part.offset), list(part.shape)
            offset[axis], shape[axis] = offset[axis] + i, 1
            yield from self._runs(Box(tuple(offset), tuple(shape)))


class RegionIndex:
    """The regions of one rank, found by key and box."""

    def __init__(self, regions: Iterable[Region]) -> None:
        self._by_key: dict[str, list[Region]] = {}
        for region in regions:
            self._by_key.setdefault(region.key, []).append(region)

    def find(self, key: str, box: Box) -> Region:
        """The region that contains a box; there must be one."""
        held = self._by_key[key]
        return held[0] if len(held) == 1 else next(region for region in held if region.box.contains(box))


def _ravel(part: Box, box: Box) -> int:
    """Row-major position in ``box`` of the first element of ``part``."""
    position = 0
    for i, origin, dim in zip(part.offset, box.offset, box.shape, strict=True):
        position = position * dim + i - origin
    return position


def regions_of(shard: ShardedTensor, array: LocalArray) -> Iterator[Region]:
    """The regions that a shard consists of, in memory order."""
    memory = flattened(array) if shard.is_flattened else array
    for box, position in shard.boxes():
        yield Region(shard.key, box, memory, position if shard.is_flattened else None)


def flattened(array: LocalArray) -> LocalArray:
    """The same memory as a one-dimensional array, in row-major order."""
    size = math.prod(array.shape)
    if len(array.shape) == 1:
        return array
    if array.host is not None and array.host.flags.c_contiguous:
        return HostArray(array.host.reshape(-1), array.dtype)

    def boxes(index: Index) -> Iterator[tuple[Index, int, Box]]:
        start, stop, _ = index[0].indices(size)
        for box, position in flat_range_boxes(array.shape, start, stop):
            yield box.within((0,) * box.ndim), position, box

    def read(index: Index) -> Array:
        parts = [array.fetch(at).reshape(-1) for at, _, _ in boxes(index)]
        return np.concatenate(parts) if parts else np.empty(0, array.dtype.numpy)

    def write(index: Index, values: Array) -> None:
        for at, position, box in boxes(index):
            array.store(at, values[position : position + box.size].reshape(box.shape))

    return DeviceArray((size,), array.dtype, read, write)
