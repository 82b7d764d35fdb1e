"""Regions as bytes: zero-copy where the memory is the host's and contiguous, copied piece by piece where it is not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box, flat_range_boxes
from flexstore.core.region import Region

Bytes = npt.NDArray[np.uint8]

DEFAULT_BUDGET = 256 << 20
"""Most extra memory of a rank for what is in flight, in bytes."""


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
        """The bytes ``[start, stop)``: a view, or a copy of just the elements that cover them."""
        if self._flat is not None:
            return self._flat[start:stop]
        itemsize = self._region.dtype.itemsize
        lo, hi = start // itemsize, -(-stop // itemsize)
        parts = [
            np.ascontiguousarray(self._region.fetch(part.shifted(self._box.offset))).reshape(-1)
            for part, _ in flat_range_boxes(self._box.shape, lo, hi)
        ]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.view(np.uint8)[start - lo * itemsize : stop - lo * itemsize]
