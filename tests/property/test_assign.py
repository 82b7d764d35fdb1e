"""Laws of the assignment of writers (balance by bytes), on plans of random surveys."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import TensorInfo
from flexstore.planning.items import Survey
from flexstore.planning.save import SavePlan, plan_save

DTYPES = [dtype_named(name) for name in ("int8", "bfloat16", "float64")]


@st.composite
def worlds(draw: st.DrawFn) -> list[Survey]:
    """Matrices, some with a leading axis of 1, in blocks of rows, each held by a random non-empty set of ranks."""
    world = draw(st.integers(1, 6))
    held: list[list[tuple[str, Box]]] = [[] for _ in range(world)]
    tensors = []
    for i in range(draw(st.integers(0, 6))):
        blocks, rows, columns = (draw(st.integers(1, n)) for n in (3, 40, 5))
        lead = (1,) * draw(st.integers(0, 1))
        tensors.append(TensorInfo(f"t{i}", draw(st.sampled_from(DTYPES)), (*lead, blocks * rows, columns)))
        for block in range(blocks):
            box = Box((*(0 for _ in lead), block * rows, 0), (*lead, rows, columns))
            for rank in draw(st.sets(st.integers(0, world - 1), min_size=1)):
                held[rank].append((f"t{i}", box))
    return [Survey.of(rank, tensors, boxes) for rank, boxes in enumerate(held)]


def plan_of(surveys: list[Survey], splits_replicas: bool = True) -> SavePlan:
    return plan_save(surveys, splits_replicas=splits_replicas, min_piece_nbytes=16)


def boxes_of(survey: Survey) -> list[tuple[str, Box]]:
    infos = [survey.tensors[t] for t in survey.tensor.tolist()]
    columns = zip(infos, survey.offset.T.tolist(), survey.shape.T.tolist(), strict=True)
    return [(i.key, Box(tuple(o[: len(i.shape)]), tuple(s[: len(i.shape)]))) for i, o, s in columns]


def holders_of(plan: SavePlan, row: int) -> list[int]:
    return plan.holders[plan.holder_start[row] : plan.holder_start[row + 1]].tolist()


@given(worlds(), st.booleans())
def test_every_byte_has_one_writer_and_it_holds_the_byte(surveys: list[Survey], splits: bool) -> None:
    plan = plan_of(surveys, splits)
    boxes = {(s.rank, key): [box for k, box in boxes_of(s) if k == key] for s in surveys for key, _ in boxes_of(s)}
    indices = []
    for rank in range(plan.world_size):
        for item in plan.items_of(rank):
            indices.append(item.index)
            assert any(box.contains(item.box) for box in boxes[rank, item.key])
    assert sorted(indices) == list(range(len(plan)))
    assert plan.loads().sum() == sum(int(np.prod(t.shape)) * t.dtype.itemsize for t in plan.tensors)


@given(worlds(), st.booleans())
def test_no_rank_could_hand_its_last_box_to_a_less_loaded_holder(surveys: list[Survey], splits: bool) -> None:
    """The greedy bound: without its smallest replicated box, a rank has no more to write than any other holder."""
    plan = plan_of(surveys, splits)
    load = plan.loads()
    for rank in range(plan.world_size):
        replicated = [r for r in np.flatnonzero(plan.writer == rank).tolist() if len(holders_of(plan, r)) > 1]
        for row in replicated[-1:]:
            assert all(load[rank] - plan.nbytes[row] <= load[holder] for holder in holders_of(plan, row))


@given(worlds())
def test_a_cut_never_raises_the_highest_load_and_makes_few_pieces(surveys: list[Survey]) -> None:
    whole, pieces = plan_of(surveys, splits_replicas=False), plan_of(surveys)
    assert pieces.loads().max() <= whole.loads().max()
    assert len(pieces) <= len(whole) + 4 * len(surveys)
    assert len(pieces) == len(whole) or pieces.loads().max() < whole.loads().max()


@given(worlds())
def test_without_splitting_the_boxes_are_those_that_are_held(surveys: list[Survey]) -> None:
    plan = plan_of(surveys, splits_replicas=False)
    held = {pair for survey in surveys for pair in boxes_of(survey)}
    assert sorted((i.key, i.box) for r in range(len(surveys)) for i in plan.items_of(r)) == sorted(held)


@given(worlds())
def test_e13_whoever_holds_a_box_writes_it_or_has_it_as_a_replica(surveys: list[Survey]) -> None:
    plan = plan_of(surveys)
    for rank in range(plan.world_size):
        seen = [item.index for item in plan.items_of(rank) + plan.replicas_of(rank)]
        assert sorted(seen) == [row for row in range(len(plan)) if rank in holders_of(plan, row)]


@given(worlds(), st.randoms())
def test_the_plan_is_sorted_and_does_not_depend_on_the_order_of_the_surveys(
    surveys: list[Survey], random: Random
) -> None:
    plan = plan_of(surveys)
    offsets = plan.offset.T.tolist()
    order = [(-n, t, o) for n, t, o in zip(plan.nbytes.tolist(), plan.tensor.tolist(), offsets, strict=True)]
    assert order == sorted(order)
    shuffled = list(surveys)
    random.shuffle(shuffled)
    again = plan_of(shuffled)
    for name in ("tensor", "offset", "shape", "nbytes", "writer", "holder_start", "holders"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(again, name))
