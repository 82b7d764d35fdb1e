"""Who writes what: every box gets one writer among its holders, balanced by bytes.

A box with one holder leaves no choice. The others go, the largest first, to the least loaded of their holders. If a
few large replicated boxes make that uneven, they are cut first, so that their holders share them. Pure and
deterministic: ties go to the lowest rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flexstore.core.manifest import Ints
from flexstore.planning.held import HeldBoxes

# Greedy assignment misses the mean by up to one box; a quarter of the mean bounds that by 25 %.
_PIECES_PER_LOAD = 4


def assign(
    boxes: HeldBoxes, world_size: int, *, splits_replicas: bool, min_piece_nbytes: int
) -> tuple[HeldBoxes, Ints]:
    """Choose the writers, and cut large replicated boxes where that lowers the highest load.

    A box is cut along its outermost axis with more than one index, so that the pieces are contiguous, into at most
    one piece per holder. Pieces are about as large as the larger of ``min_piece_nbytes`` and a quarter of the mean
    load, so there are at most ``4 * world_size`` more pieces than boxes.

    Args:
        boxes: distinct boxes.
        world_size: number of ranks.
        splits_replicas: False if no box may be cut.
        min_piece_nbytes: boxes of at most so many bytes are not cut.

    Returns:
        The boxes, the largest first, then by tensor and offset; and the writer of each, int64 ``[n]``.
    """
    boxes = boxes.largest_first()
    writer = greedy(boxes, world_size)
    if not splits_replicas:
        return boxes, writer
    pieces = cut(boxes, max(min_piece_nbytes, 1, -(-int(boxes.nbytes.sum()) // (world_size * _PIECES_PER_LOAD))))
    if len(pieces) == len(boxes):
        return boxes, writer
    pieces = pieces.largest_first()
    shared = greedy(pieces, world_size)
    better = loads(shared, pieces.nbytes, world_size).max() < loads(writer, boxes.nbytes, world_size).max()
    return (pieces, shared) if better else (boxes, writer)


def greedy(boxes: HeldBoxes, world_size: int) -> Ints:
    """The writer of each box: its only holder, or in the order of ``boxes`` the holder with the least to write."""
    writer = boxes.holders[boxes.holder_start[:-1]]
    replicated = np.flatnonzero(boxes.holder_count > 1)
    load = loads(np.delete(writer, replicated), np.delete(boxes.nbytes, replicated), world_size).tolist()
    starts = boxes.holder_start[replicated].tolist()
    stops = boxes.holder_start[replicated + 1].tolist()
    holders = boxes.holders.tolist()
    chosen = []
    for start, stop, nbytes in zip(starts, stops, boxes.nbytes[replicated].tolist(), strict=True):
        rank = min(holders[start:stop], key=load.__getitem__)
        load[rank] += nbytes
        chosen.append(rank)
    writer[replicated] = chosen
    return writer


def cut(boxes: HeldBoxes, piece_nbytes: int) -> HeldBoxes:
    """Cut every replicated box into pieces of about ``piece_nbytes`` bytes, at most one per holder.

    The pieces of a box lie side by side on its outermost axis with more than one index, differ by at most one index
    in extent, and have the holders of the box.
    """
    if not len(boxes.shape):
        return boxes
    axis = np.argmax(boxes.shape > 1, axis=0)
    extent = np.take_along_axis(boxes.shape, axis[None], axis=0)[0]
    count = np.minimum(np.minimum(boxes.holder_count, -(-boxes.nbytes // piece_nbytes)), extent)
    rows = np.repeat(np.arange(len(boxes)), count)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    first = extent[rows] * number // count[rows]
    stop = extent[rows] * (number + 1) // count[rows]
    pieces = boxes.taken(rows)
    offset, shape = pieces.offset, pieces.shape
    at = axis[rows], np.arange(len(rows))
    offset[at] += first
    shape[at] = stop - first
    return replace(pieces, nbytes=pieces.nbytes // extent[rows] * (stop - first))


def loads(writer: Ints, nbytes: Ints, world_size: int) -> Ints:
    """Bytes that each rank writes, int64 ``[world_size]``."""
    total = np.zeros(world_size, np.int64)
    np.add.at(total, writer, nbytes)
    return total
