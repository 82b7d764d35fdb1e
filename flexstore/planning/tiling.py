"""Do boxes tile their tensors? Exact, for all tensors of a checkpoint at once.

Boxes tile a tensor if every element is in exactly one of them, that is, if the sum of their indicator functions is
the indicator of the whole. Both are functions of finite support, and the mixed difference (the n-dimensional
derivative) tells such functions apart, so it is enough to compare the differences. Those are sparse: the difference
of a box is +1 or -1 at its 2**n corners, by the parity of the number of axes on which the corner is the far end.
Hence boxes tile the whole exactly if the signed corners of all boxes, less those of the whole, cancel.

The test also finds the place. A function at x is the sum of its difference over all points at or before x on every
axis. At the lexicographically first corner that does not cancel, that sum has one term: what is left there *is* the
number of boxes too many, -1 for a hole.

Pure. It does not compare bytes and does not know who holds a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.manifest import Ints, TensorInfo, padded
from flexstore.errors import FlexstoreError, TilingError
from flexstore.planning.packing import pack, run_starts

MAX_CUT_AXES = 8
"""Most axes along which one tensor may be cut: 2**axes corners per box are looked at, also in a hostile manifest."""

_HOLE = "leave a hole", "every element must be in a box: is a shard or a rank missing?"
_OVERLAP = "overlap", "two boxes of one tensor must be the same (replicas) or disjoint"
_FEW_AXES = 4
_MAX_CORNERS = 1 << 20  # of tensors cut along more axes than that: bounds what a hostile manifest can cost
_TOO_MANY_AXES = (
    f"cut it along more than {MAX_CUT_AXES} axes, or into too many boxes along more than {_FEW_AXES}",
    "cut it along fewer axes, or merge axes of the tensor",
)


def check_tiling(
    tensors: Sequence[TensorInfo],
    tensor: Ints,
    offset: Ints,
    shape: Ints,
    *,
    what: str = "saved",
    error: type[FlexstoreError] = TilingError,
) -> None:
    """Check that the boxes of every tensor cover each of its elements exactly once.

    Empty boxes count for nothing (their corners cancel), so a tensor without elements needs no box; a 0-d tensor needs
    exactly one.

    Args:
        tensors: the tensors; the extents must fit 64 bits.
        tensor: int64 ``[n]``, index into ``tensors`` of each box.
        offset, shape: int64 ``[ndim, n]``, the boxes, padded as in `ChunkTable`; ``ndim`` is at least that of every
            tensor.
        what: what the boxes are, for the message.
        error: class to raise; a manifest is corrupt, a state is invalid.

    Raises:
        TilingError: (or ``error``) a box does not lie in its tensor, or the boxes of a tensor leave a hole, overlap,
            or cut it along more than `MAX_CUT_AXES` axes. It carries the key of the first such tensor, and as ``box``
            one hole or overlap.
    """
    global_shape = padded([t.shape for t in tensors], len(offset), 1)
    defect = _outside(global_shape, tensor, offset, shape) or _untiled(global_shape, tensor, offset, shape)
    if defect:
        info = tensors[defect.tensor]
        ndim = len(info.shape)
        box = defect.box and Box(defect.box.offset[:ndim], defect.box.shape[:ndim])
        place = f" at {box}" if box else ""
        others = f"; {defect.count} tensors are not tiled" if defect.count > 1 else ""
        message = f"the {what} boxes of a tensor of shape {info.shape} {defect.fault}{place}{others}"
        raise error(message, key=info.key, box=box, hint=defect.hint)


@dataclass(frozen=True, slots=True)
class _Defect:
    """What the boxes of a tensor do wrong, and on which (padded) box, if known; ``count`` tensors have such a fault."""

    tensor: int
    fault: str
    hint: str
    box: Box | None = None
    count: int = 1


def _outside(global_shape: Ints, tensor: Ints, offset: Ints, shape: Ints) -> _Defect | None:
    extent = global_shape[:, tensor]
    outside = ((offset < 0) | (shape < 0) | (shape > extent) | (offset > extent - shape)).any(axis=0)
    if not outside.any():
        return None
    row = int(np.argmax(outside))
    return _Defect(
        int(tensor[row]),
        f"do not all lie in it: one has offset {offset[:, row].tolist()} and shape {shape[:, row].tolist()}",
        "offsets and shapes are in elements of the global tensor",
    )


def _untiled(global_shape: Ints, tensor: Ints, offset: Ints, shape: Ints) -> _Defect | None:
    tiling = _Tiling(global_shape, tensor, offset, shape)
    defects = [defect for defect in map(tiling.defect, np.unique(tiling.axis_count).tolist()) if defect]
    if not defects:
        return None
    return replace(min(defects, key=lambda defect: defect.tensor), count=sum(defect.count for defect in defects))


class _Tiling:
    """Boxes inside their tensors, and the axes along which each tensor is cut.

    Only on those axes does any box have a face inside the tensor; the others need not be looked at. So most tensors
    need 1, 2 or 4 corners per box.
    """

    def __init__(self, global_shape: Ints, tensor: Ints, offset: Ints, shape: Ints) -> None:
        self.global_shape = global_shape
        self.tensor = tensor
        self.offset = offset
        self.stop = offset + shape
        is_cut = np.zeros(global_shape.shape, np.bool_)
        for axis, partial in enumerate(shape != global_shape[:, tensor]):
            is_cut[axis, tensor[partial]] = True
        self.axis_count: Ints = is_cut.sum(axis=0, dtype=np.int64)
        self.axes: Ints = np.argsort(~is_cut, axis=0, kind="stable").astype(np.int64, copy=False)

    def defect(self, axis_count: int) -> _Defect | None:
        """The first defect among the non-empty tensors that are cut along ``axis_count`` axes."""
        chosen = (self.axis_count == axis_count) & self.global_shape.all(axis=0)
        if axis_count > MAX_CUT_AXES:
            return _Defect(int(np.argmax(chosen)), *_TOO_MANY_AXES)
        owner, start, stop, sign = self._signed_boxes(chosen, axis_count)
        if axis_count > _FEW_AXES and len(owner) << axis_count > _MAX_CORNERS:
            return _Defect(int(owner[0]), *_TOO_MANY_AXES)
        corner, parity = _corners(start, stop)
        owner = np.tile(owner, len(parity))
        left, excess = _left_over(pack([owner, *corner], len(owner)), np.outer(parity, sign).ravel())
        if not len(left):
            return None
        first = int(owner[left[0]])
        fault, hint = _HOLE if excess[0] < 0 else _OVERLAP
        return _Defect(first, fault, hint, self._cell(first, corner[:, left[0]]), len(np.unique(owner[left])))

    def _signed_boxes(self, chosen: npt.NDArray[np.bool_], axis_count: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Tensor, start and stop on its cut axes, and sign of the chosen tensors' boxes (1) and wholes (-1)."""
        wholes = np.flatnonzero(chosen)
        boxes = np.flatnonzero(chosen[self.tensor])
        owner = np.concatenate([self.tensor[boxes], wholes])
        axes = self.axes[:axis_count, owner]
        zero = np.zeros((len(self.offset), len(wholes)), np.int64)
        start = np.take_along_axis(np.hstack([self.offset[:, boxes], zero]), axes, axis=0)
        stop = np.take_along_axis(np.hstack([self.stop[:, boxes], self.global_shape[:, wholes]]), axes, axis=0)
        return owner, start, stop, np.repeat(np.array([1, -1]), [len(boxes), len(wholes)])

    def _cell(self, tensor: int, corner: Ints) -> Box:
        """The largest box that starts at ``corner`` and that no face of the tensor's boxes crosses."""
        rows = np.flatnonzero(self.tensor == tensor)
        start = np.zeros(len(self.offset), np.int64)
        stop = self.global_shape[:, tensor].copy()
        for axis, at in zip(self.axes[:, tensor].tolist(), corner.tolist(), strict=False):
            faces = np.concatenate([self.offset[axis, rows], self.stop[axis, rows], stop[axis : axis + 1]])
            start[axis], stop[axis] = at, faces[faces > at].min()
        return Box(tuple(start.tolist()), tuple((stop - start).tolist()))


def _corners(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Coordinates ``[k, 2**k * n]`` of all corners of ``n`` boxes, and the sign of each of the ``2**k`` kinds."""
    k, n = start.shape
    kinds = np.array(list(product((0, 1), repeat=k)), np.int64)
    corner = np.stack([start, stop])[kinds, np.arange(k)]
    return corner.swapaxes(0, 1).reshape(k, len(kinds) * n), 1 - 2 * (kinds.sum(axis=1) % 2)


def _left_over(key: Ints, sign: Ints) -> tuple[Ints, Ints]:
    """One row of every key whose signs do not cancel, in the order of the keys, and what is left there."""
    if not len(key):
        return key, key
    order = np.argsort(key)
    starts = run_starts(key[order])
    total = np.add.reduceat(sign[order], starts)
    bad = np.flatnonzero(total)
    return order[starts[bad]].astype(np.int64, copy=False), total[bad]
