"""A manifest that cuts tensors in absurd ways is refused at a cost that it cannot choose (X9)."""

from __future__ import annotations

import tracemalloc
from itertools import product

import numpy as np
import pytest

import flexstore as fs
from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import MANIFEST_NAME, Ints, TensorInfo
from flexstore.core.manifest_json import encode
from flexstore.errors import CorruptCheckpointError
from flexstore.planning.tiling import MAX_CUT_AXES, check_tiling
from tests.manifest_kit import manifest_of
from tests.stories_kit import URL, handing, memory_store

pytestmark = pytest.mark.usefixtures("handed")

BOXES = 200_000
"""All their corners along eight axes would be fifty million, and take gigabytes and minutes."""


def grid(ndim: int, boxes: int) -> tuple[list[TensorInfo], Ints, Ints, Ints]:
    """One tensor of extent 4 along each axis, and boxes of one element each, somewhere in it."""
    at = np.arange(boxes, dtype=np.int64) * 7919
    offset = np.stack([(at >> 2 * axis) % 4 for axis in range(ndim)])
    info = TensorInfo("w", dtype_named("float32"), (4,) * ndim)
    return [info], np.zeros(boxes, np.int64), offset, np.ones_like(offset)


@pytest.mark.parametrize("ndim", [5, MAX_CUT_AXES, MAX_CUT_AXES + 1, 32])
def test_x9_many_boxes_along_many_axes_cost_little_more_than_their_columns(ndim: int) -> None:
    tensors, tensor, offset, shape = grid(ndim, BOXES)
    columns = tensor.nbytes + offset.nbytes + shape.nbytes
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match="axes") as error:
            check_tiling(tensors, tensor, offset, shape, error=CorruptCheckpointError)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.value.key == "w"
    assert peak < 6 * columns


@pytest.mark.parametrize(("ndim", "extent"), [(MAX_CUT_AXES, 3), (MAX_CUT_AXES + 1, 2)])
def test_x9_a_published_manifest_of_such_cuts_is_refused(ndim: int, extent: int) -> None:
    """Although its boxes tile the tensor: nobody cuts a tensor like that."""
    boxes = [Box(at, (1,) * ndim) for at in product(range(extent), repeat=ndim)]
    store = memory_store()
    manifest = manifest_of({"w": (dtype_named("int8"), (extent,) * ndim, boxes)})
    store.put(MANIFEST_NAME, [encode(manifest)])
    with pytest.raises(CorruptCheckpointError, match="fewer axes") as error:
        fs.open_checkpoint(URL, storage_options=handing(store))
    assert error.value.key == "w"


def test_d14_a_few_boxes_along_many_axes_are_checked_exactly() -> None:
    ndim = MAX_CUT_AXES
    corners = [Box(at, (1,) * ndim) for at in product(range(2), repeat=ndim)]
    info = TensorInfo("w", dtype_named("float32"), (2,) * ndim)
    for boxes in (corners, corners[:-1], [*corners, corners[3]]):
        columns = [np.array(part, np.int64).T for part in zip(*((box.offset, box.shape) for box in boxes), strict=True)]
        tensor = np.zeros(len(boxes), np.int64)
        if boxes is corners:
            check_tiling([info], tensor, *columns)
        else:
            with pytest.raises(CorruptCheckpointError) as error:
                check_tiling([info], tensor, *columns, error=CorruptCheckpointError)
            assert error.value.box == (corners[-1] if len(boxes) < len(corners) else corners[3])
