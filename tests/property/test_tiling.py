"""Laws of the tiling check (D14): it agrees with counting, and the box it names is a real hole or overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import TensorInfo, padded
from flexstore.errors import CorruptCheckpointError, TilingError
from flexstore.planning.packing import pack
from flexstore.planning.tiling import MAX_CUT_AXES, check_tiling

Tiling = tuple[tuple[int, ...], list[Box]]


def info(key: str, shape: Sequence[int]) -> TensorInfo:
    return TensorInfo(key, dtype_named("float32"), tuple(shape))


def check(tilings: Sequence[Tiling], **options: object) -> None:
    """Run the check on several tensors, named t0, t1, …"""
    ndim = max((len(shape) for shape, _ in tilings), default=0)
    boxes = [box for _, boxes in tilings for box in boxes]
    check_tiling(
        [info(f"t{i}", shape) for i, (shape, _) in enumerate(tilings)],
        np.repeat(np.arange(len(tilings)), [len(boxes) for _, boxes in tilings]),
        padded([box.offset for box in boxes], ndim, 0),
        padded([box.shape for box in boxes], ndim, 1),
        **options,
    )


def count(tiling: Tiling) -> np.ndarray:
    """How many boxes each element is in."""
    shape, boxes = tiling
    counts = np.zeros(shape, np.int64)
    for box in boxes:
        counts[box.within((0,) * len(shape))] += 1
    return counts


def cut(draw: st.DrawFn, box: Box, depth: int) -> list[Box]:
    """A random guillotine tiling: cut in two along a random axis, again and again."""
    axes = [axis for axis, extent in enumerate(box.shape) if extent > 1]
    if not depth or not axes or not draw(st.booleans()):
        return [box]
    axis = draw(st.sampled_from(axes))
    at = draw(st.integers(1, box.shape[axis] - 1))
    low = Box(box.offset, (*box.shape[:axis], at, *box.shape[axis + 1 :]))
    shift = [at if i == axis else 0 for i in range(box.ndim)]
    high = Box(low.shifted(shift).offset, (*box.shape[:axis], box.shape[axis] - at, *box.shape[axis + 1 :]))
    return cut(draw, low, depth - 1) + cut(draw, high, depth - 1)


@st.composite
def tilings(draw: st.DrawFn, smallest: int = 0) -> Tiling:
    shape = tuple(draw(st.lists(st.integers(smallest, 5), max_size=4)))
    boxes = [] if 0 in shape else cut(draw, Box.whole(shape), 4)
    return shape, draw(st.permutations(boxes))


@st.composite
def box_piles(draw: st.DrawFn) -> Tiling:
    """Boxes inside a tensor, most often no tiling: a tiling with boxes removed, repeated, moved, added, or empty."""
    shape, boxes = draw(tilings(smallest=1))
    kept = [box for box in boxes for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2])))]
    for _ in range(draw(st.integers(0, 2))):
        size = [draw(st.integers(0, extent)) for extent in shape]
        offset = [draw(st.integers(0, extent - part)) for extent, part in zip(shape, size, strict=True)]
        kept.append(Box(tuple(offset), tuple(size)))
    return shape, draw(st.permutations(kept))


@given(st.lists(tilings(), max_size=4))
def test_d14_every_tiling_is_accepted(given_tilings: list[Tiling]) -> None:
    check(given_tilings)


@given(st.lists(box_piles(), min_size=1, max_size=4))
def test_d14_the_verdict_equals_counting(piles: list[Tiling]) -> None:
    counts = [count(pile) for pile in piles]
    bad = [i for i, each in enumerate(counts) if (each != 1).any()]
    if not bad:
        check(piles)
        return
    with pytest.raises(TilingError) as caught:
        check(piles)
    assert caught.value.key == f"t{bad[0]}"
    assert (f"; {len(bad)} tensors are not tiled" in str(caught.value)) == (len(bad) > 1)
    box = caught.value.box
    assert isinstance(box, Box)
    assert not box.is_empty
    found = np.unique(counts[bad[0]][box.within((0,) * box.ndim)]).tolist()
    assert len(found) == 1
    assert found[0] == 0 if "leave a hole" in str(caught.value) else found[0] > 1


@given(tilings(smallest=1), st.data())
def test_d14_a_tiling_less_any_box_has_just_that_hole(tiling: Tiling, data: st.DataObject) -> None:
    shape, boxes = tiling
    lost = data.draw(st.sampled_from(boxes))
    with pytest.raises(TilingError, match="leave a hole") as caught:
        check([(shape, [box for box in boxes if box != lost])])
    assert isinstance(caught.value.box, Box)
    assert lost.contains(caught.value.box)


@given(tilings(smallest=1), st.data())
def test_d14_a_tiling_with_any_box_twice_overlaps_there(tiling: Tiling, data: st.DataObject) -> None:
    shape, boxes = tiling
    twice = data.draw(st.sampled_from(boxes))
    with pytest.raises(TilingError, match="overlap") as caught:
        check([(shape, [*boxes, twice])])
    assert isinstance(caught.value.box, Box)
    assert twice.contains(caught.value.box)


@given(tilings(smallest=2), st.data())
def test_d14_a_tiling_with_any_box_moved_is_refused(tiling: Tiling, data: st.DataObject) -> None:
    shape, boxes = tiling
    index = data.draw(st.integers(0, len(boxes) - 1))
    box = boxes[index]
    room = [extent - stop for extent, stop in zip(shape, box.stop, strict=True)]
    shift = [data.draw(st.integers(-first, space)) for first, space in zip(box.offset, room, strict=True)]
    moved = (shape, [*boxes[:index], box.shifted(shift), *boxes[index + 1 :]])
    if any(shift):
        with pytest.raises(TilingError):
            check([moved])
    else:
        check([moved])


@given(st.lists(box_piles(), min_size=1, max_size=3), st.integers(0, 58))
def test_d14_the_verdict_does_not_depend_on_the_scale(piles: list[Tiling], bits: int) -> None:
    """Also where no linear index of the corners fits 64 bits."""

    def scaled(box: Box) -> Box:
        return Box(tuple(n << bits for n in box.offset), tuple(n << bits for n in box.shape))

    large = [(scaled(Box.whole(shape)).shape, [scaled(box) for box in boxes]) for shape, boxes in piles]
    if all((count(pile) == 1).all() for pile in piles):
        check(large)
        return
    with pytest.raises(TilingError) as small_error:
        check(piles)
    with pytest.raises(TilingError) as large_error:
        check(large)
    assert small_error.value.key == large_error.value.key
    assert isinstance(small_error.value.box, Box)
    assert scaled(small_error.value.box) == large_error.value.box


@given(
    st.integers(0, 4).flatmap(
        lambda k: st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)] * k))
    )
)
def test_packed_rows_compare_like_the_rows(rows: list[tuple[int, ...]]) -> None:
    columns = np.array(rows, np.int64).reshape(len(rows), -1 if rows and rows[0] else 0).T
    packed = pack(list(columns), len(rows)).tolist()
    assert [a < b for a in packed for b in packed] == [a < b for a in rows for b in rows]


def test_a_tensor_without_elements_needs_no_box_but_may_have_empty_ones() -> None:
    check([((3, 0), []), ((0,), [Box((0,), (0,))])])


def test_a_zero_dimensional_tensor_needs_exactly_one_box() -> None:
    scalar = Box((), ())
    check([((), [scalar])])
    with pytest.raises(TilingError, match=r"leave a hole at \[\]"):
        check([((), [])])
    with pytest.raises(TilingError, match=r"overlap at \[\]"):
        check([((), [scalar, scalar])])


def test_an_empty_box_fills_no_hole() -> None:
    with pytest.raises(TilingError, match=r"leave a hole at \[0:1, 0:4\]"):
        check([((1, 4), [Box((0, 0), (0, 4))])])


@pytest.mark.parametrize(
    "box", [Box((2, 0), (3, 4)), Box((0, 0), (4, 5)), Box((5, 0), (0, 4)), Box((2**62, 0), (2**62, 4))]
)
def test_d14_a_box_outside_of_its_tensor_is_refused(box: Box) -> None:
    with pytest.raises(TilingError, match="do not all lie in it") as caught:
        check([((4, 4), [Box.whole((4, 4)), box])])
    assert caught.value.key == "t0"


def test_d14_negative_numbers_are_refused_though_their_corners_cancel() -> None:
    offset, shape = np.array([[0, 3, 1]]), np.array([[3, -2, 3]])
    with pytest.raises(TilingError, match="do not all lie in it"):
        check_tiling([info("w", (4,))], np.zeros(3, np.int64), offset, shape)


def test_too_many_cut_axes_are_refused_before_their_corners_are_made() -> None:
    def halves(ndim: int, cuts: int) -> list[Box]:
        box, boxes = Box.whole((2,) * ndim), []
        for axis in range(cuts):
            shape = tuple(1 if i == axis else n for i, n in enumerate(box.shape))
            boxes.append(Box(box.offset, shape))
            box = Box(tuple(int(i <= axis) for i in range(ndim)), shape)
        return [*boxes, box]

    check([((2,) * 12, halves(12, MAX_CUT_AXES))])
    with pytest.raises(TilingError, match="cut it along more than"):
        check([((2,) * 40, halves(40, 40))])


def test_the_caller_chooses_the_class_and_the_noun() -> None:
    with pytest.raises(CorruptCheckpointError, match="the stored boxes"):
        check([((4,), [Box((0,), (3,))])], what="stored", error=CorruptCheckpointError)
