"""Laws of load planning: overlaps, spans and batches against numpy on small files that are held in memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.checksum import block_count, block_nbytes
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table
from flexstore.errors import CorruptCheckpointError
from flexstore.planning.load import LoadPlan, plan_load
from flexstore.planning.spans import Span, batches_of, scattered, spans_of
from flexstore.testing.generators import boxes, shapes, tilings

Array = npt.NDArray[Any]

SHAPES_OF_SEVERAL_BLOCKS = [(512, 300), (3, 50_000), (40, 50, 60), (150_000,), (2, 3, 5, 5_000)]


@dataclass(frozen=True)
class Stored:
    """A tensor ``0, 1, 2, …`` in one file, cut into chunks; and the bytes of the file."""

    values: Array
    manifest: Manifest
    content: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Reading:
    """What is wanted, and how it shall be read."""

    stored: Stored
    wanted: list[Box]
    in_place: list[bool]
    gap: int
    limit: int
    verify: bool

    @property
    def plan(self) -> LoadPlan:
        return plan_load(self.stored.manifest, [("w", box) for box in self.wanted])

    def spans(self, plan: LoadPlan) -> list[Span]:
        return list(spans_of(plan, self.in_place, gap_nbytes=self.gap, limit_nbytes=self.limit, verify=self.verify))


@st.composite
def tensors(draw: st.DrawFn) -> Stored:
    shape = draw(shapes() | st.sampled_from(SHAPES_OF_SEVERAL_BLOCKS))
    dtype = DTYPES[draw(st.sampled_from(["int32", "int64", "uint32"]))]
    values = np.arange(np.prod(shape, dtype=int)).astype(dtype.numpy).reshape(shape)
    chunks: list[Chunk] = []
    parts = [np.zeros(draw(st.integers(0, 100)), np.uint8)]
    for box in draw(st.permutations(draw(tilings(shape, 6)))):
        fortran = draw(st.booleans())
        data = values[*box.within((0,) * len(shape)), ...].ravel("F" if fortran else "C").view(np.uint8)
        crcs = np.zeros(block_count(data.size), np.uint32) if draw(st.integers(0, 3)) else None
        chunks.append(Chunk("w", box, "file", sum(part.size for part in parts), crcs, fortran))
        parts.append(data)
    content = np.concatenate(parts)
    infos, files = (TensorInfo("w", dtype, shape),), (FileInfo("file", content.size),)
    return Stored(values, Manifest("1", "test", infos, files, build_chunk_table(infos, files, chunks)), content)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    stored = draw(tensors())
    wanted = draw(st.lists(boxes(stored.values.shape).filter(lambda box: not box.is_empty), min_size=1, max_size=4))
    return Reading(
        stored,
        wanted,
        draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted))),
        gap=draw(st.sampled_from([0, 1, 8, 100, 4096, 1 << 20])),
        limit=max(1, stored.values.nbytes // draw(st.sampled_from([1, 2, 7, 50]))),
        verify=draw(st.booleans()),
    )


def is_checked(plan: LoadPlan, row: int) -> bool:
    table = plan.manifest.chunks
    return bool(table.crc_start[row + 1] > table.crc_start[row])


@settings(max_examples=150)
@given(reading=readings())
def test_r3_overlaps_cover_each_wanted_region_once(reading: Reading) -> None:
    over, table = reading.plan.overlaps, reading.stored.manifest.chunks
    ndim = reading.stored.values.ndim
    times = [np.zeros(box.shape, int) for box in reading.wanted]
    for i, (region, row) in enumerate(zip(over.region.tolist(), over.chunk.tolist(), strict=True)):
        box = over.box(i, ndim)
        assert table.box(row, ndim).contains(box)
        times[region][*box.within(reading.wanted[region].offset), ...] += 1
    assert all((count == 1).all() for count in times)


@settings(max_examples=200)
@given(reading=readings())
def test_r5_spans_hold_every_wanted_element_once(reading: Reading) -> None:
    plan, stored = reading.plan, reading.stored
    found = [np.full(box.shape, -1).astype(stored.values.dtype) for box in reading.wanted]
    times = [np.zeros(box.shape, int) for box in reading.wanted]
    for span in reading.spans(plan):
        start = int(stored.manifest.chunks.byte_offset[span.row])
        data = stored.content[start + span.start : start + span.stop]
        out, count, origin = found[span.region], times[span.region], reading.wanted[span.region].offset
        if span.part is None:
            assert reading.in_place[span.region]
            itemsize = out.itemsize
            at = slice(span.target // itemsize, span.target // itemsize + data.size // itemsize)
            out.reshape(-1)[at] = data.view(out.dtype)
            count.reshape(-1)[at] += 1
        else:
            for box, values in scattered(plan, span, span.part, data):
                out[*box.within(origin), ...] = values
                count[*box.within(origin), ...] += 1
    for box, values, count in zip(reading.wanted, found, times, strict=True):
        assert (count == 1).all()
        assert np.array_equal(values, stored.values[*box.within((0,) * box.ndim), ...])


@settings(max_examples=200)
@given(reading=readings())
def test_r5_spans_are_whole_blocks_and_no_block_is_read_twice_for_one_overlap(reading: Reading) -> None:
    plan = reading.plan
    nbytes = plan.manifest.chunk_nbytes.tolist()
    by_overlap: dict[tuple[int, int], list[Span]] = {}
    for span in reading.spans(plan):
        by_overlap.setdefault((span.region, span.row), []).append(span)
        begin, end, total = span.start - span.lead, span.stop + span.tail, nbytes[span.row]
        assert 0 <= begin <= span.start < span.stop <= end <= total
        if reading.verify and is_checked(plan, span.row):
            block = block_nbytes(total)
            assert begin % block == 0
            assert end % block == 0 or end == total
            assert span.lead < block > span.tail
        else:
            assert span.lead == span.tail == 0
    for spans in by_overlap.values():
        assert all(a.stop + a.tail <= b.start - b.lead for a, b in pairwise(spans))


@settings(max_examples=150)
@given(reading=readings())
def test_r5_without_gaps_and_blocks_exactly_the_wanted_bytes_are_read(reading: Reading) -> None:
    plan = reading.plan
    spans = spans_of(plan, reading.in_place, gap_nbytes=0, limit_nbytes=reading.limit, verify=False)
    itemsize = reading.stored.values.itemsize
    assert sum(span.nbytes for span in spans) == sum(box.size for box in reading.wanted) * itemsize


@settings(max_examples=150)
@given(reading=readings(), count=st.integers(1, 10))
def test_batches_keep_all_spans_in_order_and_their_bounds(reading: Reading, count: int) -> None:
    plan = reading.plan
    spans, position = reading.spans(plan), plan.manifest.chunks.byte_offset.tolist()

    def begin(span: Span) -> int:
        return int(position[span.row] + span.start - span.lead)

    batches = list(batches_of(spans, position, gap_nbytes=reading.gap, limit_nbytes=reading.limit, count=count))
    flat = [span for batch in batches for span in batch]
    assert sorted(map(id, flat)) == sorted(map(id, spans))
    assert [begin(span) for span in flat] == sorted(begin(span) for span in spans)
    for batch in batches:
        assert 1 <= len(batch) <= count
        assert all(0 <= begin(b) - (begin(a) + a.nbytes) <= reading.gap for a, b in pairwise(batch))
        assert len(batch) == 1 or begin(batch[-1]) + batch[-1].nbytes - begin(batch[0]) <= reading.limit


@settings(max_examples=50)
@given(stored=tensors(), data=st.data())
def test_d14_a_hole_in_what_is_wanted_is_an_error(stored: Stored, data: st.DataObject) -> None:
    chunks = stored.manifest.chunks_of("w")
    lost = data.draw(st.sampled_from(chunks))
    infos, files = stored.manifest.tensors, stored.manifest.files
    rest = build_chunk_table(infos, files, [chunk for chunk in chunks if chunk is not lost])
    with pytest.raises(CorruptCheckpointError, match="does not hold every element") as error:
        plan_load(Manifest("1", "test", infos, files, rest), [("w", Box.whole(infos[0].shape))])
    assert error.value.key == "w"
    kept = [("w", chunk.box) for chunk in chunks if chunk is not lost]
    assert len(plan_load(Manifest("1", "test", infos, files, rest), kept).overlaps) == len(kept)
