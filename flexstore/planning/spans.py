"""From overlaps to byte ranges: contiguous runs, spans over small gaps, whole checksum blocks, bounded size. Pure.

The rule for what a slice costs: an overlap that is one run in its chunk is read as exactly that run. Otherwise its
pieces are read as one span, with the gaps between them, where they lie at most ``gap_nbytes`` apart, and as spans of
their own where they lie farther apart. With verification every span is rounded out to checksum blocks (at most 1 MiB,
about 1/64 of the chunk), and pieces that could share a block are one span, too. So no byte of a chunk is read twice for
one overlap: a run never costs more than itself and two blocks, and a column slice never more than the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box, flat_range_boxes
from flexstore.core.checksum import block_nbytes
from flexstore.core.manifest import Ints
from flexstore.planning.load import LoadPlan


@dataclass(slots=True)
class Span:
    """One contiguous byte range of one chunk, and where its elements go.

    Attributes:
        row: of the chunk.
        region: index of the wanted region.
        start, stop: half-open byte range inside the chunk, of the wanted part.
        lead, tail: bytes to read before and after it, to complete checksum blocks.
        block: bytes per checksum block, or 0 if nothing is to be verified.
        target: first byte in the region's memory if the part is one run there too, else -1.
        part: the whole overlap, in global coordinates (only where target is -1); `scattered` finds what of it lies in
            the span.
    """

    row: int
    region: int
    start: int
    stop: int
    lead: int
    tail: int
    block: int
    target: int
    part: Box | None

    @property
    def nbytes(self) -> int:
        """Bytes read, rounding included."""
        return self.stop + self.tail - self.start + self.lead


@dataclass(frozen=True)
class Runs:
    """How the overlaps of a plan lie in their chunks and regions, as columns.

    Attributes:
        start: first byte inside the chunk.
        target: first byte inside the region's memory (taken as row-major).
        nbytes: bytes of the overlap.
        direct: True where the overlap is one run in both.
    """

    start: Ints
    target: Ints
    nbytes: Ints
    direct: npt.NDArray[np.bool_]


def runs_of(plan: LoadPlan) -> Runs:
    """The runs of every overlap."""
    over, table = plan.overlaps, plan.manifest.chunks
    itemsize = plan.manifest.itemsize[over.chunk]
    start, one_in_chunk = _place(over.offset, over.shape, table.offset[:, over.chunk], table.shape[:, over.chunk])
    target, one_in_region = _place(
        over.offset, over.shape, plan.wanted_offset[:, over.region], plan.wanted_shape[:, over.region]
    )
    return Runs(
        start * itemsize,
        target * itemsize,
        over.size * itemsize,
        one_in_chunk & one_in_region & ~table.fortran[over.chunk],
    )


def _place(offset: Ints, shape: Ints, outer_offset: Ints, outer_shape: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """First element of a box inside an outer row-major box, and whether it is one run there."""
    count = offset.shape[1]
    first, stride, run, size = (np.full(count, n, np.int64) for n in (0, 1, 1, 1))
    full = np.ones(count, np.bool_)
    for axis in reversed(range(len(offset))):
        first += (offset[axis] - outer_offset[axis]) * stride
        run = np.where(full, run * shape[axis], run)
        size = size * shape[axis]
        full &= shape[axis] == outer_shape[axis]
        stride = stride * outer_shape[axis]
    return first, run == size


def spans_of(
    plan: LoadPlan, in_place: Sequence[bool], *, gap_nbytes: int, limit_nbytes: int, verify: bool
) -> Iterator[Span]:
    """Cut the plan into spans.

    Args:
        plan: what to read.
        in_place: per wanted region, whether its memory is row-major host memory of the stored dtype.
        gap_nbytes: largest gap read over.
        limit_nbytes: soft limit of a span; a single element or checksum block may exceed it.
        verify: round out to checksum blocks where the chunk has checksums.
    """
    runs, over, table = runs_of(plan), plan.overlaps, plan.manifest.chunks
    chunk_nbytes = plan.manifest.chunk_nbytes[over.chunk]
    checked = table.crc_start[over.chunk + 1] > table.crc_start[over.chunk]
    direct = runs.direct & np.asarray(in_place, np.bool_)[over.region]
    ndims = [len(tensor.shape) for tensor in plan.manifest.tensors]
    columns = (over.chunk, over.region, runs.start, runs.nbytes, runs.target, chunk_nbytes, checked, direct)
    for i, (row, region, start, nbytes, target, total, has_crc, is_direct) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        itemsize = int(plan.manifest.itemsize[row])
        block = block_nbytes(total) if verify and has_crc else 0
        if is_direct:
            run = Span(row, region, start, start + nbytes, 0, 0, block, target, None)
            yield from _cut_run(run, total, itemsize, limit_nbytes)
            continue
        ndim = ndims[int(table.tensor[row])]
        chunk, part = table.box(row, ndim), over.box(i, ndim)
        strides = tuple(n * itemsize for n in _strides(chunk.shape, bool(table.fortran[row])))
        gap = max(gap_nbytes, block - itemsize)  # pieces farther apart share no block
        for lo, hi in _extents(part, chunk.offset, strides, itemsize, gap):
            yield from _cut_run(Span(row, region, lo, hi, 0, 0, block, -1, part), total, itemsize, limit_nbytes)


def _cut_run(run: Span, total: int, itemsize: int, limit: int) -> Iterator[Span]:
    """Cut one run at multiples of its checksum block, so that no block is read twice, and round it out to blocks."""
    align = run.block or itemsize
    step = max(align, limit - limit % align)
    lo = run.start
    while lo < run.stop:
        hi = min(run.stop, (lo // step + 1) * step)
        lead, tail = (lo % align, min(total, -(-hi // align) * align) - hi) if run.block else (0, 0)
        target = run.target + lo - run.start if run.target >= 0 else -1
        yield Span(run.row, run.region, lo, hi, lead, tail, run.block, target, run.part)
        lo = hi


def _strides(shape: Sequence[int], fortran: bool) -> tuple[int, ...]:
    """Elements between neighbours along each axis."""
    axes = range(len(shape)) if fortran else reversed(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in axes:
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _extents(
    part: Box, origin: Sequence[int], strides: Sequence[int], itemsize: int, gap: int
) -> Iterator[tuple[int, int]]:
    """Ascending byte ranges of a chunk at ``origin`` that hold the part, with gaps of at most ``gap`` bytes inside.

    Gaps only grow from the innermost axis outwards, so it is the outer axes that are split.
    """
    first = sum((o - g) * s for o, g, s in zip(part.offset, origin, strides, strict=True))
    reach, split = itemsize, []
    for axis in sorted(range(part.ndim), key=strides.__getitem__):
        if strides[axis] - reach > gap:
            split.append(range(0, part.shape[axis] * strides[axis], strides[axis]))
        else:
            reach += (part.shape[axis] - 1) * strides[axis]
    for steps in product(*reversed(split)):
        start = first + sum(steps)
        yield start, start + reach


def scattered(
    plan: LoadPlan, span: Span, part: Box, data: npt.NDArray[np.uint8]
) -> Iterator[tuple[Box, npt.NDArray[Any]]]:
    """The wanted elements inside ``data``, the bytes ``[span.start, span.stop)`` of the chunk.

    Yields:
        ``(box, values)``: boxes inside ``part``, and views of their elements.
    """
    table, manifest = plan.manifest.chunks, plan.manifest
    dtype = manifest.tensors[int(table.tensor[span.row])].dtype.numpy
    chunk, order = table.box(span.row, part.ndim), -1 if table.fortran[span.row] else 1
    elements = data.view(dtype)
    first = span.start // dtype.itemsize
    for held, position in flat_range_boxes(chunk.shape[::order], first, first + elements.size):
        box = Box(held.offset[::order], held.shape[::order]).shifted(chunk.offset)
        common = box.intersect(part)
        if common is not None:
            values = elements[position : position + held.size].reshape(held.shape)
            index: tuple[Any, ...] = (*common.within(box.offset), ...)
            yield common, (values if order == 1 else values.T)[index]


def batches_of(
    spans: Sequence[Span], position: Sequence[int], *, gap_nbytes: int, limit_nbytes: int, count: int
) -> Iterator[list[Span]]:
    """Group the spans of one file into requests: neighbours at most ``gap_nbytes`` apart, bounded in bytes and number.

    Args:
        spans: of one file.
        position: byte offset in the file of every chunk row.
        gap_nbytes: largest gap read over.
        limit_nbytes: soft limit of a request.
        count: most spans in a request.

    Yields:
        Spans in file order; within a batch they do not overlap.
    """
    batch: list[Span] = []
    begin = end = 0
    for span in sorted(spans, key=lambda s: position[s.row] + s.start - s.lead):
        at = position[span.row] + span.start - span.lead
        stop = at + span.nbytes
        fits = batch and end <= at <= end + gap_nbytes and stop - begin <= limit_nbytes and len(batch) < count
        if batch and not fits:
            yield batch
            batch = []
        if not batch:
            begin = at
        batch.append(span)
        end = stop
    if batch:
        yield batch
