"""Pieces of tensors in this rank's memory, seen as host memory whatever device they live on.

A `LocalArray` is one framework tensor; a `Region` is one box of a named global tensor. Plain values over numpy: the
adapters in `flexstore.frameworks` make them, the pipeline moves their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
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
        """A zero-copy view of shape ``box.shape``, or None where the memory is not the host's (or not viewable)."""
        host = self.array.host
        if host is None or self.position is None:
            return host
        if not host.flags.c_contiguous:
            return None
        return host.reshape(-1)[self.position : self.position + self.box.size].reshape(self.box.shape)

    def fetch(self, part: Box) -> Array:
        """The elements of ``part`` (global coordinates, inside ``box``) as a host array of shape ``part.shape``."""
        view = self.host()
        if view is not None:
            return view[part.within(self.box.offset)]
        if self.position is None:
            return self.array.fetch(part.within(self.box.offset))
        return _run_of(self, part)

    def store(self, part: Box, values: Array) -> None:
        """Write host ``values`` of shape ``part.shape`` at ``part`` (global coordinates, inside ``box``)."""
        view = self.host()
        if view is not None:
            view[part.within(self.box.offset)] = values
        elif self.position is None:
            self.array.store(part.within(self.box.offset), values)
        else:
            _store_run(self, part, values)


def regions_of(shard: ShardedTensor, array: LocalArray) -> Iterator[Region]:
    """The regions that a shard consists of, in memory order."""
    for box, position in shard.boxes():
        yield Region(shard.key, box, array, position if shard.is_flattened else None)


def _runs(region: Region, part: Box) -> Iterator[tuple[Index, int, int]]:
    """Cut ``part`` into row-major runs: (index in part, first flat element in the array, number of elements)."""
    assert region.position is not None
    rows: Sequence[int] = part.shape[:-1]
    length = part.shape[-1] if part.shape else 1
    for row in np.ndindex(*rows):
        at = [o - g + r for o, g, r in zip(part.offset, region.box.offset, (*row, 0), strict=True)] if part.shape else []
        flat = 0
        for i, dim in zip(at, region.box.shape, strict=True):
            flat = flat * dim + i
        yield tuple(slice(r, r + 1) for r in row), region.position + flat, length


def _flat_index(region: Region, start: int, size: int) -> Index:
    if len(region.array.shape) != 1:
        raise ValueError("a flattened shard on a device must be one-dimensional")
    return (slice(start, start + size),)


def _run_of(region: Region, part: Box) -> Array:
    out = np.empty(part.shape, region.dtype.numpy)
    if not math.prod(part.shape):
        return out
    for index, start, size in _runs(region, part):
        values = _gather(region, start, size)
        out[index] = values.reshape(out[index].shape)
    return out


def _gather(region: Region, start: int, size: int) -> Array:
    host = region.array.host
    if host is not None:
        return host.reshape(-1)[start : start + size]
    return region.array.fetch(_flat_index(region, start, size))


def _store_run(region: Region, part: Box, values: Array) -> None:
    host = region.array.host
    for index, start, size in _runs(region, part):
        run = values[index].reshape(-1)
        if host is not None:
            host.flat[start : start + size] = run
        else:
            region.array.store(_flat_index(region, start, size), run)
