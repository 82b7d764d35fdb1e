"""The order of meetings never lets ranks wait for each other in a circle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.errors import GroupError
from flexstore.groups.pairwise import Meeting, meetings

EMPTY = np.empty(0, np.uint8)


@st.composite
def traffics(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A number of ranks, and messages as (source, target)."""
    size = draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] != pair[1])
    return size, draw(st.lists(pairs, max_size=40))


def plans(size: int, traffic: list[tuple[int, int]]) -> list[list[Meeting]]:
    return [
        meetings(
            rank,
            size,
            [(target, EMPTY) for source, target in traffic if source == rank],
            [(source, EMPTY) for source, target in traffic if target == rank],
        )
        for rank in range(size)
    ]


@given(traffics())
def test_ranks_that_wait_for_their_next_peer_always_get_on(case: tuple[int, list[tuple[int, int]]]) -> None:
    size, traffic = case
    ahead = [[meeting.peer for meeting in plan] for plan in plans(size, traffic)]
    while any(ahead):
        pairs = {(rank, peers[0]) for rank, peers in enumerate(ahead) if peers and ahead[peers[0]][0] == rank}
        assert pairs, "no two ranks have each other next"
        for rank, _ in pairs:
            ahead[rank].pop(0)


@given(traffics())
def test_every_message_is_in_one_meeting_of_each_side(case: tuple[int, list[tuple[int, int]]]) -> None:
    size, traffic = case
    found = plans(size, traffic)
    for rank, plan in enumerate(found):
        assert len({meeting.peer for meeting in plan}) == len(plan)
        for meeting in plan:
            assert len(meeting.sends) == traffic.count((rank, meeting.peer))
            assert len(meeting.receives) == traffic.count((meeting.peer, rank))
    assert sum(len(meeting.sends) for plan in found for meeting in plan) == len(traffic)


def test_messages_between_two_ranks_keep_their_order() -> None:
    first, second = np.zeros(1, np.uint8), np.zeros(2, np.uint8)
    (meeting,) = meetings(0, 2, [(1, first), (1, second)], [])
    assert [data.size for data in meeting.sends] == [1, 2]


@pytest.mark.parametrize("peer", [-1, 1, 3])
def test_a_peer_outside_the_group_is_refused(peer: int) -> None:
    with pytest.raises(GroupError, match="cannot be the peer of rank 1 in a group of 3"):
        meetings(1, 3, [], [(peer, EMPTY)])
