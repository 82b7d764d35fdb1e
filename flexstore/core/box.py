"""Boxes: n-dimensional half-open rectangles in a tensor's global coordinates.

Pure values. A 0-d tensor has exactly one box, ``Box((), ())``, of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add

from flexstore.errors import InvalidStateError


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open rectangle: along axis ``d`` it covers ``offset[d] <= i < offset[d] + shape[d]``.

    Args:
        offset: first index per axis, in elements, not negative.
        shape: extent per axis, in elements, not negative. Any zero makes the box empty.

    Raises:
        InvalidStateError: the lengths differ or a number is negative.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offset) != len(self.shape):
            raise InvalidStateError(f"a box needs one offset per dimension: offset {self.offset}, shape {self.shape}")
        if self.shape and (min(self.offset) < 0 or min(self.shape) < 0):
            raise InvalidStateError(f"negative box: offset {self.offset}, shape {self.shape}")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box that covers a whole tensor of that shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements (1 for a 0-d box)."""
        return math.prod(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        """First index past the box, per axis."""
        return tuple(map(add, self.offset, self.shape))

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None where it would be empty. Both must have the same number of dimensions."""
        lo = tuple(map(max, self.offset, other.offset))
        hi = tuple(map(min, self.stop, other.stop))
        if any(a >= b for a, b in zip(lo, hi, strict=True)):
            return None
        return Box(lo, tuple(b - a for a, b in zip(lo, hi, strict=True)))

    def contains(self, other: Box) -> bool:
        """True if every element of ``other`` is in this box."""
        return self.ndim == other.ndim and all(
            a <= c and d <= b for a, b, c, d in zip(self.offset, self.stop, other.offset, other.stop, strict=True)
        )

    def shifted(self, by: Sequence[int]) -> Box:
        """The same box with ``by`` added to its offset."""
        return Box(tuple(o + b for o, b in zip(self.offset, by, strict=True)), self.shape)

    def pieces(self, limit: int) -> Iterator[Box]:
        """Cut along the outermost axes into boxes of at most ``limit`` elements (at least one), in row-major order."""
        if self.size <= max(1, limit):
            yield self
            return
        axis = next(a for a, n in enumerate(self.shape) if n > 1)
        rows = max(1, limit // (self.size // self.shape[axis]))
        for start in range(0, self.shape[axis], rows):
            offset, shape = list(self.offset), list(self.shape)
            offset[axis] += start
            shape[axis] = min(rows, self.shape[axis] - start)
            yield from Box(tuple(offset), tuple(shape)).pieces(limit)

    def within(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """Slices of this box in an array whose first element sits at ``origin``."""
        return tuple(slice(o - g, o - g + s) for o, g, s in zip(self.offset, origin, self.shape, strict=True))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.offset, self.stop, strict=True)) + "]"


def flat_range_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Cut elements ``start <= i < stop`` of a row-major block into boxes.

    The boxes come in row-major order, so that they lie one after the other in the flattened memory: a ragged head,
    a middle of whole sub-blocks, a ragged tail, recursively; at most ``2 * ndim - 1`` of them.

    Args:
        shape: shape of the block.
        start, stop: half-open range in elements, ``0 <= start <= stop <= size``.

    Yields:
        ``(box, position)``: a non-empty box in the block's own coordinates and the position of its first element in
        the range, in elements (0 for the first box).

    Raises:
        InvalidStateError: the range does not lie in the block.
    """
    size = math.prod(shape)
    if not 0 <= start <= stop <= size:
        raise InvalidStateError(
            f"flattened range [{start}, {stop}) does not lie in a block of shape {tuple(shape)} ({size} elements)"
        )
    for box in _cut(tuple(shape), start, stop):
        yield box, _ravel(box.offset, shape) - start


def _cut(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    if start >= stop:
        return
    if stop - start == math.prod(shape):
        yield Box.whole(shape)
        return
    row = math.prod(shape[1:])
    first, head = divmod(start, row)
    last, tail = divmod(stop, row)
    if first == last:
        yield from _lifted(first, shape, head, tail)
        return
    if head:
        yield from _lifted(first, shape, head, row)
        first += 1
    if first < last:
        yield Box((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))
    if tail:
        yield from _lifted(last, shape, 0, tail)


def _lifted(row: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    for box in _cut(shape[1:], start, stop):
        yield Box((row, *box.offset), (1, *box.shape))


def _ravel(index: Sequence[int], shape: Sequence[int]) -> int:
    position = 0
    for i, dim in zip(index, shape, strict=True):
        position = position * dim + i
    return position
