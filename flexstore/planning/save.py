"""The save plan: what all ranks hold, checked, and who writes it.

`plan_save` is pure and deterministic: every rank makes the same plan from the same surveys, so that only the surveys
travel. It knows no bytes: whether replicas are really equal is for whoever compares digests of `SavePlan.replicas_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexstore.core.box import Box
from flexstore.core.manifest import Ints, TensorInfo
from flexstore.errors import InvalidStateError
from flexstore.planning.assign import assign, loads
from flexstore.planning.files import WriteItem
from flexstore.planning.held import held_boxes
from flexstore.planning.items import Survey
from flexstore.planning.merge import check_names, merge_common, merge_tensors
from flexstore.planning.tiling import check_tiling


@dataclass(frozen=True)
class SavePlan:
    """Which rank writes which boxes, as columns of length n: the largest first, then by key and offset.

    Attributes:
        tensors: the global tensors, sorted by key.
        tensor: int64 ``[n]``, index into ``tensors``.
        offset, shape: int64 ``[ndim, n]``, the boxes, padded as in `ChunkTable`.
        nbytes: int64 ``[n]``.
        writer: int64 ``[n]``, the rank that writes the box.
        holder_start, holders: the ranks that hold box i, ascending, are
            ``holders[holder_start[i]:holder_start[i + 1]]``.
        common, common_paths: plain values, as in `Manifest`.
        world_size: number of ranks.
    """

    tensors: tuple[TensorInfo, ...]
    tensor: Ints
    offset: Ints
    shape: Ints
    nbytes: Ints
    writer: Ints
    holder_start: Ints
    holders: Ints
    common: Mapping[str, Any]
    common_paths: Mapping[str, tuple[str, ...]]
    world_size: int

    def __len__(self) -> int:
        return len(self.tensor)

    def items_of(self, rank: int) -> list[WriteItem]:
        """What ``rank`` writes, in the order of the plan."""
        return self._items(np.flatnonzero(self.writer == rank))

    def held_by(self, rank: int) -> Ints:
        """Indices of the boxes that ``rank`` holds, ascending."""
        held: Ints = np.searchsorted(self.holder_start, np.flatnonzero(self.holders == rank), side="right") - 1
        return held

    def replicas_of(self, rank: int) -> list[WriteItem]:
        """What ``rank`` holds but another rank writes, in the order of the plan; their bytes must be equal (E13)."""
        held = self.held_by(rank)
        return self._items(held[self.writer[held] != rank])

    def shared_by(self, rank: int) -> list[WriteItem]:
        """What ``rank`` and others hold, whoever writes it, in the order of the plan."""
        held = self.held_by(rank)
        return self._items(held[np.diff(self.holder_start)[held] > 1])

    def loads(self) -> Ints:
        """Bytes that each rank writes, int64 ``[world_size]``."""
        return loads(self.writer, self.nbytes, self.world_size)

    def _items(self, rows: Ints) -> list[WriteItem]:
        columns = (rows, self.tensor[rows], self.offset[:, rows].T, self.shape[:, rows].T)
        items = []
        for row, tensor, offset, shape in zip(*(column.tolist() for column in columns), strict=True):
            info = self.tensors[tensor]
            ndim = len(info.shape)
            box = Box(tuple(offset[:ndim]), tuple(shape[:ndim]))
            items.append(WriteItem(row, info.key, info.dtype, box, info.shape))
        return items


def plan_save(surveys: Sequence[Survey], *, splits_replicas: bool = True, min_piece_nbytes: int = 8 << 20) -> SavePlan:
    """Plan a save. Every rank calls it with the surveys of all ranks.

    Args:
        surveys: one per rank, in any order.
        splits_replicas: whether a large replicated box may be cut among its holders.
        min_piece_nbytes: boxes of at most so many bytes are not cut.

    Raises:
        InvalidStateError: ranks disagree about a tensor or a plain value (R2), or a rank's survey is missing.
        KeyCollisionError: one name stands for two things (D16).
        TilingError: the boxes of a tensor leave holes, overlap in part, or lie outside of it (D14).
    """
    surveys = _by_rank(surveys)
    tensors = merge_tensors(surveys)
    common, common_paths = merge_common(surveys)
    check_names(tensors, common)
    boxes = held_boxes(tensors, surveys)
    check_tiling(tensors, boxes.tensor, boxes.offset, boxes.shape)
    boxes, writer = assign(boxes, len(surveys), splits_replicas=splits_replicas, min_piece_nbytes=min_piece_nbytes)
    return SavePlan(
        tensors=tensors,
        tensor=boxes.tensor,
        offset=boxes.offset,
        shape=boxes.shape,
        nbytes=boxes.nbytes,
        writer=writer,
        holder_start=boxes.holder_start,
        holders=boxes.holders,
        common=common,
        common_paths=common_paths,
        world_size=len(surveys),
    )


def _by_rank(surveys: Sequence[Survey]) -> list[Survey]:
    ordered = sorted(surveys, key=lambda survey: survey.rank)
    ranks = [survey.rank for survey in ordered]
    if not ranks or ranks != list(range(len(ranks))):
        raise InvalidStateError(f"a save needs one survey of each rank, got those of ranks {ranks!s:.200}")
    return ordered
