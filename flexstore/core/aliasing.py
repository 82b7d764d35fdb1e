"""Regions that share memory. Reading into one would change the other behind its back. Pure.

Only host memory is looked at; what a device shares is not visible from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flexstore.core.region import Array, Region


def overlaps_itself(region: Region) -> bool:
    """True if one element of the memory stands for several of the region (an expanded tensor)."""
    host = region.array.host
    return host is not None and any(n > 1 and stride == 0 for n, stride in zip(host.shape, host.strides, strict=True))


def sharing(regions: Sequence[Region], others: Sequence[Region] | None = None) -> Iterator[tuple[Region, Region]]:
    """Pairs of regions that have bytes in common.

    Args:
        regions: where to look.
        others: if given, pairs of one of ``regions`` and one of these; else pairs of two of ``regions``.
    """
    spans = [(*_extent(host), 0, region, host) for region in regions if (host := region.host()) is not None]
    if others is not None:
        spans += [(*_extent(host), 1, region, host) for region in others if (host := region.host()) is not None]
    spans.sort(key=lambda span: span[:2])
    reaching: list[tuple[int, int, Region, Array]] = []  # those that may still overlap what comes next
    for start, stop, side, region, host in spans:
        reaching = [entry for entry in reaching if entry[0] > start]
        for _, other_side, other, other_host in reaching:
            if (others is None or side != other_side) and np.shares_memory(host, other_host):
                yield (other, region) if other_side <= side else (region, other)
        reaching.append((stop, side, region, host))


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
