"""What the planner is told: one rank's survey of what it holds, as columns. Metadata only, cheap to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flexstore.core.box import Box
from flexstore.core.manifest import Ints, TensorInfo, padded


@dataclass(frozen=True)
class Survey:
    """The boxes that one rank holds.

    Attributes:
        rank: whose survey it is.
        tensors: the global tensors it knows, also those of which it holds nothing.
        tensor: int64 ``[n]``, index into ``tensors`` of each box.
        offset, shape: int64 ``[ndim, n]``, the boxes, padded as in `ChunkTable`; none is empty.
        common, common_paths: plain values, as in `Manifest`.
    """

    rank: int
    tensors: tuple[TensorInfo, ...]
    tensor: Ints
    offset: Ints
    shape: Ints
    common: Mapping[str, Any] = field(default_factory=dict)
    common_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def common_only(self) -> Survey:
        """The same survey without tensors and boxes."""
        return replace(
            self, tensors=(), tensor=self.tensor[:0], offset=self.offset[:, :0].copy(), shape=self.shape[:, :0].copy()
        )

    @classmethod
    def of(
        cls,
        rank: int,
        tensors: Sequence[TensorInfo],
        boxes: Sequence[tuple[str, Box]],
        common: Mapping[str, Any] | None = None,
        common_paths: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Survey:
        """Columns from ``(key, box)`` pairs; the order of the boxes is kept."""
        position = {tensor.key: i for i, tensor in enumerate(tensors)}
        ndim = max((len(t.shape) for t in tensors), default=0)
        return cls(
            rank=rank,
            tensors=tuple(tensors),
            tensor=np.array([position[key] for key, _ in boxes], np.int64),
            offset=padded([box.offset for _, box in boxes], ndim, 0),
            shape=padded([box.shape for _, box in boxes], ndim, 1),
            common=dict(common or {}),
            common_paths=dict(common_paths or {}),
        )
