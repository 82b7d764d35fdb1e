"""Rows of integer columns as single sortable integers, so that grouping and sorting cost one pass of numpy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flexstore.core.manifest import Ints

_LIMIT = 1 << 62


def pack(columns: Iterable[Ints], n: int) -> Ints:
    """One int64 per row of ``columns``; they compare exactly like the rows do, lexicographically.

    Exact for any values: where the product of the columns' spans would not fit, what is packed so far and the next
    column are first replaced by their ranks among the distinct values.

    Args:
        columns: int64 ``[n]`` each, most significant first.
        n: number of rows (it is not implied where there are no columns), at most 2**31.
    """
    key, span = np.zeros(n, np.int64), 1
    if not n:
        return key
    for column in columns:
        lowest = int(column.min())
        width = int(column.max()) - lowest + 1
        if span * width > _LIMIT:
            (key, span), (column, width) = _ranked(key), _ranked(column)
            lowest = 0
        key = key * width + (column - lowest)
        span *= width
    return key


def run_starts(ordered: Ints) -> Ints:
    """Where each run of equal values starts in a sorted column."""
    starts: Ints = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    return starts


def _ranked(column: Ints) -> tuple[Ints, int]:
    distinct, rank = np.unique(column, return_inverse=True)
    return rank.astype(np.int64, copy=False), len(distinct)
