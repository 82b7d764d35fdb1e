"""What `reshard` promises: from the memory of all ranks to the memory of all ranks (R1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.core.dtypes import DTYPES
from flexstore.errors import InvalidStateError, ReplicaMismatchError, StateMismatchError, TilingError
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import expected
from tests.stories_kit import URL, bits, handing, memory_store, outcomes

pytestmark = pytest.mark.usefixtures("handed")

SHAPE = (6, 8)
VALUES = expected("w", SHAPE, "float32")


def block(values: np.ndarray, box: fs.Box, **fields: Any) -> fs.ShardedTensor:
    """The part of a tensor in a box; a view of it."""
    return fs.ShardedTensor("w", values[box.within((0, 0))], box.shape, SHAPE, box.offset, **fields)


def rows_of(rank: int, size: int) -> fs.Box:
    return fs.Box((rank * 6 // size, 0), (6 // size, 8))


def columns_of(rank: int, size: int) -> fs.Box:
    return fs.Box((0, rank * 8 // size), (6, 8 // size))


def test_r1_memory_and_storage_give_the_same_state_and_report() -> None:
    options = handing(memory_store())

    def work(group: ThreadGroup) -> None:
        rank, size = group.rank, group.size
        source = {"w": block(VALUES.copy(), rows_of(rank, size)), "step": 3, "spare": np.ones(2)}
        targets = [{"w": block(np.zeros(SHAPE, np.float32), columns_of(rank, size)), "step": 0} for _ in range(2)]
        fs.save(source, URL, group=group, storage_options=options)
        through_storage = fs.load(targets[0], URL, group=group, storage_options=options)
        through_memory = fs.reshard(source, targets[1], group=group)
        assert bits(targets[0]["w"].local_tensor) == bits(targets[1]["w"].local_tensor)
        assert bits(targets[1]["w"].local_tensor) == bits(VALUES[columns_of(rank, size).within((0, 0))])
        assert targets[0]["step"] == targets[1]["step"] == 3
        assert through_storage.unexpected == through_memory.unexpected == ("spare",)

    run(2, work)


def test_r5_only_what_a_rank_lacks_travels() -> None:
    def work(group: ThreadGroup) -> None:
        rank, size = group.rank, group.size
        source = {"w": block(VALUES.copy(), rows_of(rank, size)), "replicated": np.ones(100)}
        same = {"w": block(np.zeros(SHAPE, np.float32), rows_of(rank, size)), "replicated": np.zeros(100)}
        report = fs.reshard(source, same, group=group)
        assert (report.bytes_read, report.reads) == (0, 0)
        assert bits(same["w"].local_tensor) == bits(source["w"].local_tensor)
        turned = {"w": block(np.zeros(SHAPE, np.float32), columns_of(rank, size))}
        report = fs.reshard(source, turned, group=group)
        assert report.bytes_read == turned["w"].local_tensor.nbytes // 2

    run(2, work)


@pytest.mark.parametrize("budget", [0, 1 << 20, 256 << 20])
def test_a_large_tensor_travels_in_bounded_rounds(budget: int) -> None:
    big = np.arange(9_000_001, dtype=np.int16)

    def work(group: ThreadGroup) -> None:
        source = {"big": big} if group.rank == 0 else {}
        target = {} if group.rank == 0 else {"big": np.zeros_like(big)}
        report = fs.reshard(source, target, group=group, budget_nbytes=budget)
        if group.rank:
            assert bits(target["big"]) == bits(big)
            assert report.bytes_read == big.nbytes
            assert report.reads >= (1 if budget > big.nbytes else 4)

    run(2, work)


def test_d5_d6_another_dtype_is_refused_or_converted() -> None:
    target = {"w": np.zeros(SHAPE, DTYPES["bfloat16"].numpy)}
    with pytest.raises(StateMismatchError, match="dtype float32"):
        fs.reshard({"w": VALUES}, target)
    assert not target["w"].any()
    fs.reshard({"w": VALUES}, target, cast=True)
    assert bits(target["w"]) == bits(VALUES.astype(target["w"].dtype))


@pytest.mark.parametrize("mode", [True, False, "exact"])
def test_d18_m10_lists_and_modes_are_those_of_a_load(mode: Any) -> None:
    def work(group: ThreadGroup) -> Any:
        target = {"a": np.zeros(2)} if group.rank else {"new": np.zeros(1), "bad": np.zeros(4), "a": np.zeros(2)}
        report = fs.reshard({"a": np.ones(2), "bad": np.ones(3), "b": 1}, target, group=group, strict=mode)
        assert target["a"].all()
        return report

    for result in outcomes(2, work):
        assert isinstance(result, StateMismatchError) == (mode is not False)
        assert (result.missing, result.unexpected, result.mismatched) == (("new",), ("b",), ("bad",))


def test_r6_a_transposed_head_is_refused() -> None:
    whole = fs.Box.whole(SHAPE)
    source = {"w": block(VALUES, whole, declared_axis=1)}
    with pytest.raises(StateMismatchError, match="declared axis"):
        fs.reshard(source, {"w": block(np.zeros(SHAPE, np.float32), whole, declared_axis=0)})


def test_r2_a_source_with_holes_is_refused_on_all_ranks() -> None:
    def work(group: ThreadGroup) -> None:
        source = {"w": block(VALUES.copy(), rows_of(0, 2))}
        fs.reshard(source, {"w": np.zeros(SHAPE, np.float32)}, group=group)

    assert all(isinstance(error, TilingError) for error in outcomes(2, work))


def test_e13_replicas_with_different_bytes_are_found() -> None:
    def work(group: ThreadGroup, **options: Any) -> None:
        fs.reshard({"expert": np.full(3, group.rank)}, {"expert": np.zeros(3, int)}, group=group, **options)

    assert all(isinstance(e, ReplicaMismatchError) and e.key == "expert" for e in outcomes(2, work))
    assert outcomes(2, lambda group: work(group, check_replicas=False)) == [None, None]


@pytest.mark.parametrize(
    "aliased",
    [
        lambda values: values[::-1],
        lambda values: values.T,
        lambda values: values.reshape(-1)[1:31].reshape(5, 6),
        lambda values: values.view(np.int32),
    ],
    ids=["backwards", "transposed", "shifted", "of another type"],
)
def test_a_target_in_the_memory_of_the_source_is_refused_on_all_ranks(aliased: Any) -> None:
    """It would be read after it was overwritten."""

    def work(group: ThreadGroup) -> None:
        values = expected("square", (6, 6), "float32")
        target = aliased(values) if group.rank else np.zeros((6, 6), np.float32)
        part = fs.Box.whole(target.shape)
        shard = fs.ShardedTensor("w", target, part.shape, (6, 6), part.offset)
        fs.reshard({"w": values, "v": np.ones(3)}, {"w": shard}, cast=True, group=group)

    for error in outcomes(2, work):
        assert isinstance(error, InvalidStateError)
        assert "shares memory" in error.message
        assert error.rank == 1


def test_the_very_same_memory_may_be_source_and_target() -> None:
    values = VALUES.copy()
    fs.reshard({"w": values}, {"w": values})
    assert bits(values) == bits(VALUES)


def test_interleaved_views_of_one_buffer_do_not_overlap() -> None:
    buffer = np.zeros((6, 16), np.float32)
    buffer[:, ::2] = VALUES
    fs.reshard({"w": buffer[:, ::2]}, {"w": buffer[:, 1::2]})
    assert bits(buffer[:, 1::2]) == bits(VALUES)
