"""What a slice costs in bytes read (R5). Nothing is read: plans of large tensors are made, and their bytes counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flexstore.backends.base import IoModel
from flexstore.core.box import Box
from flexstore.core.checksum import block_count, block_nbytes
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import Chunk, FileInfo, Manifest, TensorInfo, build_chunk_table
from flexstore.planning.load import plan_load
from flexstore.planning.spans import Span, batches_of, spans_of

MiB = 1 << 20
IO = IoModel()


def manifest(
    shape: tuple[int, ...], boxes: Sequence[Box] = (), *, dtype: str = "float32", fortran: bool = False
) -> Manifest:
    """One tensor, one file, one chunk after the other; one chunk if no boxes are given."""
    info = TensorInfo("w", DTYPES[dtype], shape)
    chunks, at = [], 0
    for box in boxes or [Box.whole(shape)]:
        nbytes = box.size * info.dtype.itemsize
        chunks.append(Chunk("w", box, "file", at, np.zeros(block_count(nbytes), np.uint32), fortran))
        at += nbytes
    files = (FileInfo("file", at),)
    return Manifest("1", "test", (info,), files, build_chunk_table((info,), files, chunks))


def requests(
    of: Manifest, *wanted: Box, in_place: bool = True, verify: bool = True, gap: int = IO.gap_nbytes
) -> list[int]:
    """The bytes of each request of a load."""
    plan = plan_load(of, [("w", box) for box in wanted])
    spans = list(spans_of(plan, [in_place] * len(wanted), gap_nbytes=gap, limit_nbytes=IO.read_nbytes, verify=verify))
    position = of.chunks.byte_offset.tolist()

    def extent(batch: Sequence[Span]) -> int:
        first, last = batch[0], batch[-1]
        return int(position[last.row] + last.stop + last.tail - position[first.row] - first.start + first.lead)

    return [
        extent(batch) for batch in batches_of(spans, position, gap_nbytes=gap, limit_nbytes=IO.read_nbytes, count=256)
    ]


def nbytes(box: Box, dtype: str = "float32") -> int:
    return box.size * DTYPES[dtype].itemsize


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", [(64 << 10, 4096), (40_001, 5003), (1000, 41, 5003)])
def test_r5_a_quarter_of_the_rows_reads_at_most_two_percent_more(shape: tuple[int, ...], in_place: bool) -> None:
    quarter = Box((shape[0] // 4, *(0,) * (len(shape) - 1)), (shape[0] // 4, *shape[1:]))
    read = sum(requests(manifest(shape), quarter, in_place=in_place))
    assert nbytes(quarter) <= read <= 1.02 * nbytes(quarter)
    assert sum(requests(manifest(shape), quarter, in_place=in_place, verify=False)) == nbytes(quarter)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", [(8192, 4097), (33, 1023, 511), (5_000_001,), ()])
def test_r5_a_whole_chunk_is_read_exactly_once(shape: tuple[int, ...], in_place: bool) -> None:
    of = manifest(shape)
    assert sum(requests(of, Box.whole(shape), in_place=in_place)) == of.nbytes


@pytest.mark.parametrize("start", [0, 1, 77_777])
def test_r5_a_run_costs_itself_and_two_blocks_at_most(start: int) -> None:
    of = manifest((3000, 1000))
    rows = Box((start % 3000, 0), (7, 1000))
    read = sum(requests(of, rows))
    assert nbytes(rows) <= read < nbytes(rows) + 2 * block_nbytes(of.nbytes)


@pytest.mark.parametrize("columns", [1, 2500, 25_000, 49_990])
@pytest.mark.parametrize("rows", [100, 5000])
def test_r5_a_column_slice_never_costs_more_than_the_chunk(rows: int, columns: int) -> None:
    of = manifest((rows, 50_000))
    assert sum(requests(of, Box((0, 3), (rows, columns)))) <= of.nbytes


def test_r5_a_column_slice_of_wide_rows_costs_its_pieces_and_their_blocks() -> None:
    of = manifest((50, 4_000_000))
    column = Box((0, 1_000_000), (50, 1_000))
    read = sum(requests(of, column))
    assert read <= nbytes(column) + 50 * 2 * block_nbytes(of.nbytes)
    assert read < of.nbytes / 5
    assert sum(requests(of, column, verify=False)) == nbytes(column)


def test_small_gaps_are_read_over_and_large_ones_are_not() -> None:
    of = manifest((10, 1000))
    column = Box((0, 0), (10, 500))
    assert requests(of, column, verify=False, gap=2000) == [9 * 4000 + 2000]
    assert requests(of, column, verify=False, gap=1999) == [2000] * 10


def test_neighbouring_chunks_of_one_file_are_one_request() -> None:
    halves = [Box((0, 0), (500, 10)), Box((500, 0), (500, 10))]
    assert requests(manifest((1000, 10), halves), Box.whole((1000, 10))) == [40_000]


def test_requests_are_bounded() -> None:
    of = manifest((64 << 10, 4096), dtype="bfloat16")
    sizes = requests(of, Box.whole((64 << 10, 4096)))
    assert set(sizes) == {IO.read_nbytes}
    assert max(requests(of, Box((0, 0), (64 << 10, 100)))) <= IO.read_nbytes


def test_r5_rows_of_a_column_major_chunk_are_its_columns() -> None:
    turned = manifest((4_000_000, 50), fortran=True)
    straight = manifest((50, 4_000_000))
    columns, rows = Box((1_000_000, 0), (1_000, 50)), Box((0, 1_000_000), (50, 1_000))
    assert requests(turned, columns) == requests(straight, rows)
    assert sum(requests(turned, Box((0, 7), (4_000_000, 1)), verify=False)) == 4 * 4_000_000


def test_r5_other_chunks_are_not_touched() -> None:
    parts = [Box((0, 1024 * i), (8192, 1024)) for i in range(8)]
    of = manifest((8192, 8192), parts)
    assert sum(requests(of, Box((0, 2048), (8192, 2048)))) == of.nbytes // 4
