"""Which ranks hold which boxes: the boxes of all ranks as columns, replicas found by their coordinates. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flexstore.core.manifest import Ints, TensorInfo
from flexstore.planning.items import Survey
from flexstore.planning.packing import pack, run_starts


@dataclass(frozen=True)
class HeldBoxes:
    """Distinct boxes and their holders.

    Attributes:
        tensor: int64 ``[n]``, index of the global tensor.
        offset, shape: int64 ``[ndim, n]``, padded as in `ChunkTable`.
        nbytes: int64 ``[n]``.
        holder_start: int64 ``[n + 1]``; the holders of box i are ``holders[holder_start[i]:holder_start[i + 1]]``.
        holders: ranks, ascending for each box.
    """

    tensor: Ints
    offset: Ints
    shape: Ints
    nbytes: Ints
    holder_start: Ints
    holders: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def holder_count(self) -> Ints:
        """Holders per box."""
        return np.diff(self.holder_start)

    def taken(self, rows: Ints) -> HeldBoxes:
        """The boxes at ``rows``, in that order; a row may occur several times."""
        count = self.holder_count[rows]
        start = np.concatenate([[0], np.cumsum(count)]).astype(np.int64, copy=False)
        within = np.arange(start[-1]) - np.repeat(start[:-1] - self.holder_start[rows], count)
        return HeldBoxes(
            self.tensor[rows], self.offset[:, rows], self.shape[:, rows], self.nbytes[rows], start, self.holders[within]
        )

    def largest_first(self) -> HeldBoxes:
        """The same boxes, sorted by (nbytes descending, tensor, offset)."""
        return self.taken(np.argsort(pack([-self.nbytes, self.tensor, *self.offset], len(self)), kind="stable"))


def held_boxes(tensors: Sequence[TensorInfo], surveys: Sequence[Survey]) -> HeldBoxes:
    """Merge the boxes of all ranks; a box that one rank lists twice is held once.

    Args:
        tensors: every tensor of every survey.
        surveys: by ascending rank.
    """
    tensor, offset, shape, rank = _stacked(tensors, surveys)
    key = pack([tensor, *offset, *shape], len(tensor))
    order = np.argsort(key, kind="stable")
    key, rank = key[order], rank[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (key[1:] != key[:-1]) | (rank[1:] != rank[:-1])
    order, key, rank = order[fresh], key[fresh], rank[fresh]
    starts = run_starts(key)
    first = order[starts]
    itemsize = np.fromiter((t.dtype.itemsize for t in tensors), np.int64, len(tensors))
    tensor, shape = tensor[first], shape[:, first]
    return HeldBoxes(
        tensor=tensor,
        offset=offset[:, first],
        shape=shape,
        nbytes=np.prod(shape, axis=0, dtype=np.int64) * itemsize[tensor],
        holder_start=np.append(starts, len(key)),
        holders=rank,
    )


def _stacked(tensors: Sequence[TensorInfo], surveys: Sequence[Survey]) -> tuple[Ints, Ints, Ints, Ints]:
    """The columns of all surveys, one after the other, and the rank of each row."""
    position = {tensor.key: i for i, tensor in enumerate(tensors)}
    counts = [len(survey.tensor) for survey in surveys]
    ndim = max((len(tensor.shape) for tensor in tensors), default=0)
    tensor = np.empty(sum(counts), np.int64)
    offset = np.zeros((ndim, len(tensor)), np.int64)
    shape = np.ones((ndim, len(tensor)), np.int64)
    stop = 0
    for survey, count in zip(surveys, counts, strict=True):
        start, stop = stop, stop + count
        ids = np.fromiter((position[info.key] for info in survey.tensors), np.int64, len(survey.tensors))
        tensor[start:stop] = ids[survey.tensor]
        offset[: len(survey.offset), start:stop] = survey.offset
        shape[: len(survey.shape), start:stop] = survey.shape
    return tensor, offset, shape, np.repeat(np.array([survey.rank for survey in surveys], np.int64), counts)
