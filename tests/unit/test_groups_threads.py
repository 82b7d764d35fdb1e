"""A group of threads keeps the contract of `ProcessGroup`."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from flexstore.errors import GroupError, GroupTimeoutError
from flexstore.groups.base import ProcessGroup
from flexstore.groups.single import SingleGroup
from flexstore.groups.threads import ThreadGroup, run


def test_results_come_in_rank_order() -> None:
    assert run(4, lambda group: (group.rank, group.size, group.timeout), timeout=9.0) == [(r, 4, 9.0) for r in range(4)]


def test_thread_and_single_groups_are_process_groups() -> None:
    assert run(1, lambda group: isinstance(group, ProcessGroup)) == [True]
    assert isinstance(SingleGroup(), ProcessGroup)


def test_all_gather_gives_every_rank_every_value() -> None:
    def gather(group: ThreadGroup) -> list[list[Any]]:
        return [group.all_gather(f"step {number}", (number, group.rank)) for number in range(50)]

    assert run(5, gather) == [[[(number, rank) for rank in range(5)] for number in range(50)]] * 5


def test_ranks_never_share_a_gathered_object() -> None:
    def gather(group: ThreadGroup) -> list[list[int]]:
        own = [group.rank]
        values = group.all_gather("lists", own)
        own.append(7)
        for value in values:
            value.append(group.rank)
        group.all_gather("done", None)
        return values

    assert run(3, gather) == [[[0, r], [1, r], [2, r]] for r in range(3)]


def test_exchange_delivers_each_message_to_its_receiver_in_order() -> None:
    def swap(group: ThreadGroup) -> list[list[int]]:
        peers = [rank for rank in range(group.size) if rank != group.rank]
        sends = [(p, np.full(3, 10 * group.rank + i, np.uint8)) for i in range(2) for p in peers]
        buffers = [(p, np.zeros(3, np.uint8)) for _ in range(2) for p in peers]
        group.exchange("swap", sends, buffers)
        return [buffer.tolist() for _, buffer in buffers]

    for rank, received in enumerate(run(3, swap)):
        assert received == [[10 * p + i] * 3 for i in range(2) for p in range(3) if p != rank]


def test_what_was_sent_may_change_at_once() -> None:
    def swap(group: ThreadGroup) -> int:
        data, buffer = np.full(1000, group.rank, np.uint8), np.zeros(1000, np.uint8)
        group.exchange("swap", [(1 - group.rank, data)], [(1 - group.rank, buffer)])
        data[:] = 99
        group.all_gather("changed", None)
        return int(buffer.max())

    assert run(2, swap) == [1, 0]


def test_messages_of_other_sizes_than_expected_are_refused() -> None:
    def swap(group: ThreadGroup) -> None:
        if group.rank == 0:
            group.exchange("swap", [(1, np.zeros(3, np.uint8))], [])
        else:
            group.exchange("swap", [], [(0, np.zeros(4, np.uint8))])

    with pytest.raises(GroupError, match=r"rank 0 sends \[3\] bytes where \[4\] are expected"):
        run(2, swap)


def test_an_unexpected_message_is_refused() -> None:
    with pytest.raises(GroupError, match=r"rank 0 sends \[3\] bytes where \[\] are expected"):
        run(2, lambda group: group.exchange("swap", [(1, np.zeros(3, np.uint8))] * (group.rank == 0), []))


@pytest.mark.parametrize("peer", [0, 2, -1])
def test_a_rank_has_no_message_for_itself_or_a_stranger(peer: int) -> None:
    with pytest.raises(GroupError, match="cannot be the peer"):
        run(2, lambda group: group.exchange("x", [(peer, np.zeros(1, np.uint8))], []) if group.rank == 0 else None)


def test_l5_a_rank_that_has_ended_is_absent_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(GroupTimeoutError) as caught:
        run(3, lambda group: group.all_gather("save", None) if group.rank != 1 else None, timeout=300.0)
    assert caught.value.absent == (1,)
    assert (caught.value.rank, caught.value.step) == (0, "save")
    assert time.monotonic() - start < 100


def test_d24_a_rank_that_only_delays_is_named_after_the_timeout() -> None:
    gave_up = threading.Event()

    def save(group: ThreadGroup) -> tuple[int, ...]:
        if group.rank == 1:
            gave_up.wait()
            return ()
        try:
            group.all_gather("save", None)
        except GroupTimeoutError as error:
            gave_up.set()
            return error.absent
        return ()

    assert run(2, save, timeout=0.1) == [(1,), ()]


def test_a_step_that_was_given_up_does_not_harm_the_next() -> None:
    gave_up = threading.Event()

    def save(group: ThreadGroup) -> list[int]:
        if group.rank == 1:
            gave_up.wait()
        else:
            with pytest.raises(GroupTimeoutError):
                group.all_gather("first try", None)
            gave_up.set()
        return group.all_gather("second try", group.rank)

    assert run(2, save, timeout=0.2) == [[0, 1]] * 2


def test_ranks_in_different_steps_are_told_all_names() -> None:
    with pytest.raises(GroupError, match="'plan' on ranks 0, 2, 'write' on rank 1") as caught:
        run(3, lambda group: group.all_gather("write" if group.rank == 1 else "plan", None))
    assert not isinstance(caught.value, GroupTimeoutError)


def test_a_gather_does_not_meet_an_exchange_of_the_same_name() -> None:
    def cross(group: ThreadGroup) -> None:
        if group.rank == 0:
            group.all_gather("write", None)
        else:
            group.exchange("write", [], [])

    with pytest.raises(GroupError, match="different steps"):
        run(2, cross)


def test_the_lowest_ranks_error_is_raised_and_the_others_are_noted() -> None:
    def fail(group: ThreadGroup) -> None:
        if group.rank:
            raise KeyError("k") if group.rank == 1 else ValueError("same")

    with pytest.raises(KeyError) as caught:
        run(4, fail)
    assert caught.value.__notes__ == ["also on ranks 2, 3: ValueError: same"]


def test_an_error_comes_before_the_timeouts_it_causes() -> None:
    def fail(group: ThreadGroup) -> None:
        if group.rank == 1:
            raise ZeroDivisionError
        group.all_gather("after", None)

    with pytest.raises(ZeroDivisionError):
        run(3, fail)


def test_single_group_is_a_group_of_one() -> None:
    group = SingleGroup()
    assert (group.rank, group.size, group.all_gather("step", "x")) == (0, 1, ["x"])
    group.exchange("step", [], [])
    with pytest.raises(GroupError, match="cannot be the peer of rank 0 in a group of 1"):
        group.exchange("step", [(0, np.zeros(1, np.uint8))], [])
