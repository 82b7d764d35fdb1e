"""Regions that share memory. Reading into one would change the other behind its back. Pure.

Only host memory is looked at; what a device shares is not visible from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flexstore.core.region import Array, Region


def overlaps_itself(region: Region) -> bool:
    """True if elements of the region may share memory (an expanded tensor, sliding windows).

    Never true of what slicing, transposing and reversing make of an array: there, each axis steps over all that the
    axes of smaller steps reach.
    """
    host = region.array.host
    if host is None or host.flags.c_contiguous:
        return False
    reach = host.itemsize
    for step, extent in sorted((abs(step), n) for step, n in zip(host.strides, host.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach += step * (extent - 1)
    return False


def sharing(regions: Sequence[Region], others: Sequence[Region] | None = None) -> Iterator[tuple[Region, Region]]:
    """Pairs of regions that have bytes in common.

    Args:
        regions: where to look.
        others: if given, pairs of one of ``regions`` and one of these; else pairs of two of ``regions``.
    """
    sides = [regions] if others is None else [regions, others]
    held = [
        (side, region, host)
        for side, some in enumerate(sides)
        for region in some
        if (host := region.host()) is not None
    ]
    extents = np.array([_extent(host) for *_, host in held], np.int64).reshape(-1, 2)
    order = np.lexsort((extents[:, 1], extents[:, 0]))
    start, stop = extents[order].T
    if (start[1:] >= np.maximum.accumulate(stop)[:-1]).all():
        return  # nothing even touches; looked at all at once, because states are large
    reaching: list[tuple[int, int, Region, Array]] = []  # those that may still overlap what comes next
    for at, (side, region, host) in zip(start.tolist(), (held[i] for i in order), strict=True):
        reaching = [entry for entry in reaching if entry[0] > at]
        for _, other_side, other, other_host in reaching:
            if (others is None or side != other_side) and np.shares_memory(host, other_host):
                yield (other, region) if other_side <= side else (region, other)
        reaching.append((_extent(host)[1], side, region, host))


def is_same_memory(one: Region, other: Region) -> bool:
    """True if two regions are the same elements of memory in the same order."""
    a, b = one.host(), other.host()
    return (
        a is not None
        and b is not None
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
        and _address(a) == _address(b)
    )


def _extent(host: Array) -> tuple[int, int]:
    """First byte and one past the last."""
    if host.flags.c_contiguous:
        start = _address(host)
        return start, start + host.nbytes
    low, high = np.lib.array_utils.byte_bounds(host)
    return int(low), int(high)


def _address(host: Array) -> int:
    return int(host.__array_interface__["data"][0])
