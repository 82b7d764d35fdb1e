"""`ShardedTensor`: how a piece in a rank's memory sits in its global tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flexstore.core.box import Box, flat_range_boxes
from flexstore.errors import InvalidStateError


@dataclass(frozen=True, slots=True, eq=False)
class ShardedTensor:
    """One shard of a global tensor, in the field's words (Paddle ``ShardedWeight``, Megatron ``ShardedTensor``).

    Args:
        key: the global tensor's name in the checkpoint.
        local_tensor: the elements, of any supported framework. Unflattened: of shape ``local_shape``. Flattened:
            any tensor whose row-major elements are those of ``flattened_range``, followed by padding, if any (the
            padding is neither saved nor changed by a load).
        local_shape: shape of the local block, in elements.
        global_shape: shape of the whole tensor.
        global_offset: where the local block starts in the whole tensor.
        is_flattened: True if only a row-major range of the block is held.
        flattened_range: that range, half-open, in elements of the block (sharding V2, ZeRO, fused buffers). May be
            empty.
        replica_id: which of several equal copies this is; informative only, flexstore finds replicas by their boxes.
        declared_axis: a semantic axis that must agree between save and load, such as the vocabulary axis of an LM
            head (0 if transposed or tied, else 1; R6). None declares nothing.

    Raises:
        InvalidStateError: the numbers contradict each other.
    """

    key: str
    local_tensor: Any
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    is_flattened: bool = False
    flattened_range: slice | tuple[int, int] | None = None
    replica_id: Any = 0
    declared_axis: int | None = None

    def __post_init__(self) -> None:
        for name in ("local_shape", "global_shape", "global_offset"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        if self.flattened_range is not None:
            object.__setattr__(self, "flattened_range", _range(self.flattened_range))
        if self.is_flattened != (self.flattened_range is not None):
            raise InvalidStateError("is_flattened and flattened_range must be given together", key=self.key)
        if not self._fits():
            raise InvalidStateError(
                f"the local block of shape {self.local_shape} at {self.global_offset} does not lie in the global shape "
                f"{self.global_shape}",
                key=self.key,
            )
        if isinstance(self.flattened_range, slice):
            self._check_range(self.flattened_range)
        if self.declared_axis is not None and not 0 <= self.declared_axis < len(self.global_shape):
            raise InvalidStateError(
                f"declared_axis {self.declared_axis} of a tensor with {len(self.global_shape)} dimensions",
                key=self.key,
            )

    def _fits(self) -> bool:
        """Written for speed: a state has tens of thousands of shards."""
        if not len(self.global_offset) == len(self.local_shape) == len(self.global_shape):
            return False
        for offset, extent, dim in zip(self.global_offset, self.local_shape, self.global_shape, strict=True):
            if offset < 0 or extent < 0 or offset + extent > dim:
                return False
        return True

    def _check_range(self, held: slice) -> None:
        size = math.prod(self.local_shape)
        if not 0 <= held.start <= held.stop <= size:
            raise InvalidStateError(
                f"the flattened range [{held.start}, {held.stop}) does not lie in a block of shape {self.local_shape} "
                f"({size} elements)",
                key=self.key,
            )

    @property
    def block(self) -> Box:
        """The local block in global coordinates (all of it, also when flattened)."""
        return Box(self.global_offset, self.local_shape)

    @property
    def size(self) -> int:
        """Elements held, padding not counted."""
        if isinstance(self.flattened_range, slice):
            return int(self.flattened_range.stop - self.flattened_range.start)
        return math.prod(self.local_shape)

    def boxes(self) -> Iterator[tuple[Box, int]]:
        """The boxes held, in global coordinates.

        Yields:
            ``(box, position)``: position of the box's first element in the flattened ``local_tensor``; boxes are
            consecutive there. A block that is not flattened is one box at position 0. Empty boxes are left out.
        """
        if isinstance(self.flattened_range, slice):
            start, stop = self.flattened_range.start, self.flattened_range.stop
            for box, position in flat_range_boxes(self.local_shape, start, stop):
                yield box.shifted(self.global_offset), position
        elif 0 not in self.local_shape:
            yield self.block, 0


def _range(given: slice | tuple[int, int]) -> slice:
    if isinstance(given, slice):
        if given.step not in (None, 1):
            raise InvalidStateError(f"flattened_range {given} has a step")
        return slice(int(given.start or 0), int(given.stop))
    start, stop = given
    return slice(int(start), int(stop))
