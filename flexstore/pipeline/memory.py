"""Regions as bytes: zero-copy where the memory is the host's and contiguous, slab by slab where it is not."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.region import Region

Bytes = npt.NDArray[np.uint8]


def host_bytes(region: Region, part: Box | None = None) -> Bytes | None:
    """The row-major bytes of ``part`` (None: of all) as a view of the region's memory; None if that needs a copy."""
    view = region.host()
    if view is None:
        return None
    if part is not None and part.shape != region.box.shape:
        view = view[part.within(region.box.offset)]
    if not view.flags.c_contiguous or not view.dtype.isnative:
        return None
    return view.reshape(-1).view(np.uint8)


class ItemBytes:
    """The row-major bytes of a box inside a region, by byte range.

    Args:
        region: where the elements are.
        box: the wanted part, in global coordinates.
    """

    __slots__ = ("_box", "_flat", "_region", "nbytes")

    def __init__(self, region: Region, box: Box) -> None:
        self._region = region
        self._box = box
        self._flat = host_bytes(region, box)
        self.nbytes = box.size * region.dtype.itemsize

    def read(self, start: int, stop: int) -> Bytes:
        """The bytes ``[start, stop)``: a view, or a copy of the slabs that cover them."""
        if self._flat is not None:
            return self._flat[start:stop]
        itemsize = self._region.dtype.itemsize
        lo, hi = start // itemsize, -(-stop // itemsize)
        rows, first = _covering(self._box, lo, hi)
        data = np.ascontiguousarray(self._region.fetch(rows)).reshape(-1).view(np.uint8)
        return data[start - first * itemsize : stop - first * itemsize]


def _covering(box: Box, start: int, stop: int) -> tuple[Box, int]:
    """The whole rows that cover the elements ``[start, stop)`` of a box, and the first element of those rows.

    Rows are along the outermost axis with more than one index; a box of one element is its own row.
    """
    axis = next((a for a, n in enumerate(box.shape) if n > 1), None)
    if axis is None:
        return box, 0
    row = math.prod(box.shape[axis + 1 :])
    first, last = start // row, -(-stop // row)
    offset, shape = list(box.offset), list(box.shape)
    offset[axis] += first
    shape[axis] = last - first
    return Box(tuple(offset), tuple(shape)), first * row
