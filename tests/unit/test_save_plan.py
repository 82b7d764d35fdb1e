"""The save plan: what ranks must agree on, who writes what, and when a cached plan may be reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import TensorInfo
from flexstore.errors import InvalidStateError, KeyCollisionError, TilingError
from flexstore.planning.items import Survey
from flexstore.planning.merge import merge_common
from flexstore.planning.save import SavePlan, plan_save
from flexstore.planning.signature import signature

MIB = 1 << 20


def tensor(key: str, *shape: int, dtype: str = "float32", **fields: Any) -> TensorInfo:
    return TensorInfo(key, dtype_named(dtype), shape, **fields)


def whole(rank: int, *tensors: TensorInfo, **fields: Any) -> Survey:
    """A rank that holds all of some tensors."""
    return Survey.of(rank, tensors, [(t.key, Box.whole(t.shape)) for t in tensors], **fields)


def rows(rank: int, info: TensorInfo, start: int, stop: int) -> Survey:
    """A rank that holds some rows of a tensor."""
    box = Box((start,) + (0,) * (len(info.shape) - 1), (stop - start, *info.shape[1:]))
    return Survey.of(rank, [info], [(info.key, box)])


def written(plan: SavePlan) -> list[list[tuple[str, Box]]]:
    return [[(item.key, item.box) for item in plan.items_of(rank)] for rank in range(plan.world_size)]


def plain(*values: Mapping[str, Any]) -> list[Survey]:
    return [Survey.of(rank, [], [], common) for rank, common in enumerate(values)]


# What ranks must agree on.


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (tensor("w", 4, dtype="bfloat16"), "dtype of a tensor: float32 and bfloat16"),
        (tensor("w", 5), r"shape of a tensor: \(4,\) and \(5,\)"),
        (tensor("w", 4, declared_axis=0), "declared_axis of a tensor: 1 and 0"),
    ],
)
def test_r2_ranks_that_disagree_about_a_tensor_are_named(other: TensorInfo, text: str) -> None:
    w = tensor("w", 4, declared_axis=1)
    surveys = [whole(0), whole(1, w), whole(2, w), whole(3, other)]
    with pytest.raises(InvalidStateError, match=f"ranks 1 and 3 disagree about the {text}") as caught:
        plan_save(surveys)
    assert (caught.value.key, caught.value.rank) == ("w", 3)
    assert type(caught.value) is InvalidStateError


@pytest.mark.parametrize("axes", [(None, 0), (0, None), (None, 0, None, 0)])
def test_r6_an_axis_need_not_be_declared_by_all_ranks(axes: Sequence[int | None]) -> None:
    surveys = [whole(rank, tensor("w", 4, declared_axis=axis)) for rank, axis in enumerate(axes)]
    assert plan_save(surveys).tensors == (tensor("w", 4, declared_axis=0),)


@pytest.mark.parametrize("axes", [(None, 0, 1), (0, None, 1), (None, None, 0, 1)])
def test_r6_an_axis_declared_in_two_ways_is_refused_whoever_leaves_it_out(axes: Sequence[int | None]) -> None:
    surveys = [whole(rank, tensor("w", 4, declared_axis=axis)) for rank, axis in enumerate(axes)]
    with pytest.raises(InvalidStateError, match="declared_axis of a tensor: 0 and 1") as caught:
        plan_save(surveys)
    assert (caught.value.key, caught.value.rank) == ("w", len(axes) - 1)


@pytest.mark.parametrize("changes", [{"dtype": "int8"}, {"path": ("v", "w")}])
def test_r2_a_declared_axis_hides_no_other_difference(changes: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidStateError, match=f"disagree about the {next(iter(changes))}"):
        plan_save([whole(0, tensor("w", 4)), whole(1, tensor("w", 4, declared_axis=0, **changes))])


def test_d16_one_key_at_two_places_of_the_state_collides() -> None:
    nested = tensor("a.b", 4, path=("a", "b"))
    with pytest.raises(KeyCollisionError, match="ranks 0 and 1 disagree about the path"):
        plan_save([whole(0, tensor("a.b", 4)), whole(1, nested)])


def test_d16_a_tensor_on_one_rank_and_a_plain_value_on_another_collide() -> None:
    with pytest.raises(KeyCollisionError, match="a tensor and a plain value") as caught:
        plan_save([whole(0, tensor("w", 4)), Survey.of(1, [], [], {"w": 3})])
    assert caught.value.key == "w"


def test_d16_a_plain_value_at_two_places_collides() -> None:
    surveys = [Survey.of(0, [], [], {"a.b": 1}), Survey.of(1, [], [], {"a.b": 1}, {"a.b": ("a", "b")})]
    with pytest.raises(KeyCollisionError, match="one name at different places"):
        merge_common(surveys)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ("1", b"1"),
        (None, 0),
        ([1], (1,)),
        ([1, 2], [1]),
        ({"x": [1]}, {"x": [1.0]}),
        ({"x": 1}, {"y": 1}),
        ({1: "x"}, {True: "x"}),
    ],
)
def test_r2_different_plain_values_are_refused(a: Any, b: Any) -> None:
    with pytest.raises(InvalidStateError, match="ranks 0 and 1 have different plain values") as caught:
        merge_common(plain({"v": a}, {"v": b}))
    assert (caught.value.key, caught.value.rank) == ("v", 1)


def test_equal_plain_values_merge_whatever_ranks_have_them() -> None:
    nan = float("nan")
    a = {"step": 3, "n": nan, "d": {"x": [nan, 1], "y": None}}
    b = {"only": "b", "n": float("nan"), "d": {"y": None, "x": [float("nan"), 1]}}
    common, paths = merge_common([*plain(a, b), Survey.of(2, [], [], {"o.p": 1}, {"o.p": ("o", "p")})])
    assert list(common) == ["step", "n", "d", "only", "o.p"]
    assert common["d"] is a["d"]
    assert paths == {"o.p": ("o", "p")}


@pytest.mark.parametrize("ranks", [[], [1], [0, 2], [0, 0]])
def test_a_missing_survey_is_refused(ranks: list[int]) -> None:
    with pytest.raises(InvalidStateError, match="one survey of each rank"):
        plan_save([whole(rank) for rank in ranks])


# Coverage.


def test_d14_incomplete_coverage_names_key_and_hole() -> None:
    w = tensor("w", 8, 2)
    with pytest.raises(TilingError, match=r"leave a hole at \[3:5, 0:2\]") as caught:
        plan_save([rows(0, w, 0, 3), rows(1, w, 5, 8)])
    assert (caught.value.key, caught.value.box) == ("w", Box((3, 0), (2, 2)))


def test_d14_partial_overlap_is_no_replica() -> None:
    w = tensor("w", 8, 2)
    with pytest.raises(TilingError, match=r"overlap at \[3:5, 0:2\]"):
        plan_save([rows(0, w, 0, 5), rows(1, w, 3, 8)])


def test_d14_a_tensor_that_nobody_holds_is_a_hole() -> None:
    with pytest.raises(TilingError, match="leave a hole"):
        plan_save([Survey.of(0, [tensor("w", 2)], [])])


def test_a_tensor_without_elements_is_planned_without_items() -> None:
    plan = plan_save([Survey.of(0, [tensor("w", 0, 3)], [])])
    assert len(plan) == 0
    assert [t.key for t in plan.tensors] == ["w"]


def test_r7_key_sets_may_be_disjoint_or_empty_and_dimensions_may_differ() -> None:
    plan = plan_save([whole(0, tensor("b", 2, 3, 4)), whole(1), whole(2, tensor("a"), tensor("c", 5))])
    assert [t.key for t in plan.tensors] == ["a", "b", "c"]
    assert written(plan) == [
        [("b", Box((0, 0, 0), (2, 3, 4)))],
        [],
        [("c", Box((0,), (5,))), ("a", Box((), ()))],
    ]


def test_a_box_listed_twice_by_one_rank_is_held_once() -> None:
    w = tensor("w", 4)
    plan = plan_save([Survey.of(0, [w], [("w", Box.whole((4,)))] * 2)])
    assert plan.holders.tolist() == [0]
    assert plan.replicas_of(0) == []


# Who writes.


def test_e13_replicas_are_listed_for_every_holder_but_the_writer() -> None:
    surveys = [whole(rank, tensor("expert.0", 16)) for rank in range(3)]
    plan = plan_save(surveys)
    writer = int(plan.writer[0])
    assert [len(plan.replicas_of(rank)) for rank in range(3)] == [int(rank != writer) for rank in range(3)]
    other = plan.replicas_of((writer + 1) % 3)[0]
    assert other == plan.items_of(writer)[0]


def test_e13_the_pieces_of_a_cut_replica_are_compared_too() -> None:
    plan = plan_save([whole(rank, tensor("w", 64)) for rank in range(4)], min_piece_nbytes=1)
    for rank in range(4):
        assert sum(item.nbytes for item in plan.items_of(rank)) == 64
        assert sum(item.nbytes for item in plan.replicas_of(rank)) == 3 * 64


def test_a_large_replicated_tensor_is_written_by_all_of_its_holders() -> None:
    surveys = [whole(rank, tensor("embedding", 256 * MIB // 1024, 1024)) for rank in range(8)]
    plan = plan_save(surveys)
    assert plan.loads().tolist() == [128 * MIB] * 8
    assert len(plan) == 8
    assert all(item.box.shape[1] == 1024 for rank in range(8) for item in plan.items_of(rank))


def test_a_cut_follows_the_outermost_axis_that_can_be_cut() -> None:
    plan = plan_save([whole(rank, tensor("w", 1, 3, 8)) for rank in range(2)], min_piece_nbytes=1)
    assert sorted(box for items in written(plan) for _, box in items) == [
        Box((0, 0, 0), (1, 1, 8)),
        Box((0, 1, 0), (1, 2, 8)),
    ]


@pytest.mark.parametrize("options", [{"splits_replicas": False}, {"min_piece_nbytes": 64 * 4}])
def test_a_replicated_tensor_stays_whole_if_told_so_or_small(options: Mapping[str, Any]) -> None:
    plan = plan_save([whole(rank, tensor("w", 64)) for rank in range(4)], **options)
    assert written(plan) == [[("w", Box((0,), (64,)))], [], [], []]


def test_nothing_is_cut_where_that_gains_nothing() -> None:
    """Two equal tensors on two ranks balance already; and one rank has more of its own than any share."""
    pair = [tensor("a", 64), tensor("b", 64)]
    assert len(plan_save([whole(rank, *pair) for rank in range(2)], min_piece_nbytes=1)) == 2
    own = tensor("own", 4096)
    assert len(plan_save([whole(0, own), whole(1, *pair), whole(2, *pair)], min_piece_nbytes=1)) == 3


def test_m7_replicas_are_spread_and_not_left_to_the_lowest_rank() -> None:
    tensors = [tensor(f"t{i}", 10) for i in range(8)]
    assert plan_save([whole(rank, *tensors) for rank in range(4)]).loads().tolist() == [80] * 4


def test_e17_odd_counts_are_balanced_to_within_one_tensor() -> None:
    layers = [tensor(f"layers.{i}.weight", 7, 5, dtype="bfloat16") for i in range(13)]
    plan = plan_save([whole(rank, *layers) for rank in range(3)])
    assert sorted(plan.loads().tolist()) == [4 * 70, 4 * 70, 5 * 70]


def test_e17_uneven_shards_of_an_odd_size_tile() -> None:
    w = tensor("w", 7, 3)
    plan = plan_save([rows(0, w, 0, 3), rows(1, w, 3, 5), rows(2, w, 5, 7)])
    assert plan.loads().tolist() == [36, 24, 24]


def test_x8_a_small_tensor_costs_bytes_in_the_plan() -> None:
    biases = [tensor(f"b{i}", 16) for i in range(5000)]
    plan = plan_save([whole(rank, *biases) for rank in range(2)])
    columns = [value for value in vars(plan).values() if isinstance(value, np.ndarray)]
    assert sum(column.nbytes for column in columns) <= 72 * len(biases)


def test_many_replicated_shards_are_shared_evenly() -> None:
    """64 ranks with 500 shards each, 4 replicas of each: 8,000 boxes."""
    tensors = tuple(tensor(f"w{i}", 1024, 8) for i in range(500))
    size = np.array([[64], [8]]).repeat(500, axis=1)
    surveys = [
        Survey(rank, tensors, np.arange(500), np.array([[rank % 16 * 64], [0]]).repeat(500, axis=1), size)
        for rank in range(64)
    ]
    plan = plan_save(surveys)
    assert len(plan) == 8000
    assert set(plan.loads().tolist()) == {125 * 64 * 8 * 4}


# The plan cache.


def described(**changes: Any) -> Survey:
    base = Survey.of(
        0, [tensor("w", 4, 4), tensor("v", 4)], [("w", Box((0, 0), (2, 4))), ("v", Box((0,), (4,)))], {"step": 1}
    )
    return replace(base, **changes)


def variants() -> Sequence[Survey]:
    base = described()
    w, v = base.tensors
    return [
        described(rank=1),
        *(
            described(tensors=(changed, v))
            for changed in (
                replace(w, key="u"),
                replace(w, dtype=dtype_named("int32")),
                replace(w, shape=(4, 5)),
                replace(w, path=("w", "")),
                replace(w, declared_axis=0),
            )
        ),
        described(tensor=base.tensor[::-1].copy()),
        described(offset=base.offset + 1),
        described(shape=base.shape + 1),
        described(tensor=base.tensor[:1], offset=base.offset[:, :1], shape=base.shape[:, :1]),
        described(common={"steps": 1}),
        described(common_paths={"step": ("s", "tep")}),
    ]


def test_x3_the_signature_changes_with_everything_that_a_plan_depends_on() -> None:
    base = described()
    digests = [signature(survey, 2, "distcp") for survey in [base, *variants()]]
    digests += [signature(base, 3, "distcp"), signature(base, 2, "zarr")]
    assert len(set(digests)) == len(digests)


def test_x3_columns_that_are_equal_end_to_end_have_different_signatures() -> None:
    few, many = (
        described(
            tensor=np.zeros(n, np.int64), offset=np.zeros((ndim, n), np.int64), shape=np.zeros((ndim, n), np.int64)
        )
        for ndim, n in ((1, 3), (0, 9))
    )
    assert signature(few, 2, "distcp") != signature(many, 2, "distcp")


def test_x3_plain_values_may_change_under_a_cached_plan() -> None:
    assert signature(described(), 2, "distcp") == signature(described(common={"step": 2}), 2, "distcp")


def test_x3_the_signature_does_not_depend_on_the_memory_layout_of_the_columns() -> None:
    strided = described(offset=np.asfortranarray(described().offset))
    assert signature(strided, 2, "distcp") == signature(described(), 2, "distcp")
