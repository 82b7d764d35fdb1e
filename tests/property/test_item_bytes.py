"""The bytes of a box by byte range: equal to those of a copy, and fetched without more than was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_of
from flexstore.core.region import Array, DeviceArray, HostArray, Index, Region, flattened
from flexstore.pipeline.memory import ItemBytes, host_bytes

TYPES = [np.int8, np.float16, np.int32, np.float64, np.complex128]


class Device:
    """Memory that only `DeviceArray`'s functions reach; counts what is fetched."""

    def __init__(self, content: Array) -> None:
        self.content = content
        self.fetched = 0
        self.array = DeviceArray(content.shape, dtype_of(content.dtype), self.read, self.write)

    def read(self, index: Index) -> Array:
        values = self.content[index].copy()
        self.fetched += values.size
        return values

    def write(self, index: Index, values: Array) -> None:
        self.content[index] = values


@st.composite
def strided(draw: st.DrawFn) -> Array:
    """An array in any order that slicing, transposing and reversing can make."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, max_side=6))
    base = np.arange(np.prod(shape), dtype=draw(st.sampled_from(TYPES))).reshape(shape)
    steps = [slice(None, None, draw(st.sampled_from([1, 1, 2, -1]))) for _ in shape]
    return base[tuple(steps)].transpose(draw(st.permutations(range(base.ndim))))


@st.composite
def parts(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A non-empty box of a tensor."""
    starts = [draw(st.integers(0, extent - 1)) for extent in shape]
    return Box(tuple(starts), tuple(draw(st.integers(1, n - at)) for n, at in zip(shape, starts, strict=True)))


@st.composite
def ranges(draw: st.DrawFn, nbytes: int) -> tuple[int, int]:
    start = draw(st.integers(0, nbytes - 1))
    return start, draw(st.integers(start + 1, nbytes))


def elements(start: int, stop: int, itemsize: int) -> int:
    """How many elements have a byte in a range."""
    return -(-stop // itemsize) - start // itemsize


@given(data=st.data(), values=strided(), origin=st.integers(0, 9))
def test_the_bytes_of_a_range_are_those_of_a_copy(data: st.DataObject, values: Array, origin: int) -> None:
    """Any strides, any box, any range of bytes, also from the middle of an element; on the host and on a device."""
    part = data.draw(parts(values.shape))
    start, stop = data.draw(ranges(part.size * values.itemsize))
    wanted = values[part.within((0,) * values.ndim)].tobytes()[start:stop]
    shift = (origin,) * values.ndim
    device = Device(values)
    for array in (HostArray(values, dtype_of(values.dtype)), device.array):
        item = ItemBytes(Region("w", Box(shift, values.shape), array), part.shifted(shift))
        assert item.nbytes == part.size * values.itemsize
        assert item.read(start, stop).tobytes() == wanted
    assert device.fetched == elements(start, stop, values.itemsize)


@given(data=st.data(), values=strided(), before=st.integers(0, 5))
def test_the_bytes_of_flattened_memory_are_those_of_a_copy(data: st.DataObject, values: Array, before: int) -> None:
    """A box that is one run of a fused buffer, wherever the run starts and however the buffer lies."""
    part = data.draw(parts(values.shape))
    start, stop = data.draw(ranges(part.size * values.itemsize))
    wanted = values[part.within((0,) * values.ndim)].tobytes()[start:stop]
    fused = np.zeros(before + values.size + 2, values.dtype)
    fused[before : before + values.size] = values.ravel()
    spread = np.repeat(fused[:, None], 2, axis=1)[:, :1]  # two-dimensional and not contiguous
    device, far = Device(fused), Device(spread)
    for array in (HostArray(fused, dtype_of(fused.dtype)), device.array, flattened(far.array)):
        region = Region("w", Box.whole(values.shape), array, before)
        assert ItemBytes(region, part).read(start, stop).tobytes() == wanted
    assert device.fetched == far.fetched == elements(start, stop, values.itemsize)


@given(data=st.data(), values=strided())
def test_consecutive_windows_together_fetch_each_element_once(data: st.DataObject, values: Array) -> None:
    """If they end between elements, as those of uploads and checksum blocks do."""
    window = values.itemsize * data.draw(st.integers(1, 2 + values.size))
    device = Device(values)
    item = ItemBytes(Region("w", Box.whole(values.shape), device.array), Box.whole(values.shape))
    windows = [item.read(at, min(at + window, item.nbytes)) for at in range(0, item.nbytes, window)]
    assert b"".join(part.tobytes() for part in windows) == values.tobytes()
    assert device.fetched == values.size


@pytest.mark.parametrize("rows", [slice(None), slice(1, 3)])
def test_contiguous_host_memory_is_not_copied(rows: slice) -> None:
    values = np.arange(12, dtype=np.int32).reshape(4, 3)
    region = Region("w", Box.whole((4, 3)), HostArray(values, dtype_of(values.dtype)))
    start, stop, _ = rows.indices(4)
    part = Box((start, 0), (stop - start, 3))
    read = ItemBytes(region, part).read(0, part.size * 4)
    assert np.shares_memory(read, values)
    assert read.tobytes() == values[rows].tobytes()
    view = host_bytes(region, part)
    assert view is not None
    assert view.tobytes() == values[rows].tobytes()


@pytest.mark.parametrize("make", [lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1], lambda a: a.astype(">i4")])
def test_other_host_memory_has_no_view_of_its_bytes(make: Any) -> None:
    values = make(np.arange(12, dtype=np.int32).reshape(4, 3))
    region = Region("w", Box.whole(values.shape), HostArray(values, dtype_of(np.dtype(np.int32))))
    assert host_bytes(region) is None
