"""`ThreadGroup`: ranks that are threads of one process, for tests, notebooks and dry runs of a parallel layout.

Promises: the contract of every `ProcessGroup`, and one thing more: a rank whose function has ended is absent at once,
so a test of an absent rank does not wait for the timeout. Values travel pickled and bytes are copied, as between
processes: no two ranks ever share an object. It does not make Python code run in parallel.

A step that was given up is void for all ranks: those that wait in it raise together, those that come later take part in
the next one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flexstore.errors import GroupError
from flexstore.groups.failures import absence, first_failure, mismatch
from flexstore.groups.pairwise import Message, exchange_step, meetings
from flexstore.groups.wire import pack, unpack

T = TypeVar("T")


def run(world_size: int, fn: Callable[[ThreadGroup], T], *, timeout: float = 60.0) -> list[T]:
    """Call ``fn(group)`` on every rank of a new group, each rank a thread.

    Args:
        world_size: number of ranks, at least 1.
        fn: what each rank does; ``group.rank`` tells the ranks apart.
        timeout: seconds that a step of the group waits for its last rank.

    Returns:
        What each rank returned, in rank order.

    Raises:
        BaseException: that of the lowest rank that failed, after all ranks have ended; timeouts only if no rank failed
            otherwise. The errors of further ranks are notes on it.
    """
    room = _Room(world_size, timeout)
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work(rank: int) -> None:
        try:
            results[rank] = fn(ThreadGroup(room, rank))
        except BaseException as error:
            errors[rank] = error
        finally:
            room.leave(rank)

    ranks = [threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True) for r in range(world_size)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    if errors:
        raise first_failure(errors)
    return [results[rank] for rank in range(world_size)]


class ThreadGroup:
    """One rank's end of a group of threads; made by `run`."""

    def __init__(self, room: _Room, rank: int) -> None:
        self._room = room
        self._rank = rank

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._room.size

    @property
    def timeout(self) -> float:
        return self._room.timeout

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """See `ProcessGroup.all_gather`."""
        return [unpack(payload) for payload in self._room.meet(self._rank, step, pack(value))]

    def exchange(self, step: str, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See `ProcessGroup.exchange`.

        Raises:
            GroupError: what a peer sends is not, in number and sizes, what this rank expects.
        """
        partners = meetings(self._rank, self.size, sends, receives)
        outgoing = {partner.peer: [data.copy() for data in partner.sends] for partner in partners}
        incoming = self._room.meet(self._rank, exchange_step(step), outgoing)
        expected = {partner.peer: partner.receives for partner in partners}
        for peer in range(self.size):
            self._deliver(step, peer, incoming[peer].get(self._rank, []), expected.get(peer, []))

    def _deliver(
        self, step: str, peer: int, sent: list[npt.NDArray[np.uint8]], wanted: list[npt.NDArray[np.uint8]]
    ) -> None:
        if [data.size for data in sent] != [buffer.size for buffer in wanted]:
            raise GroupError(
                f"rank {peer} sends {[data.size for data in sent]} bytes where {[b.size for b in wanted]} are expected",
                rank=self._rank,
                step=step,
            )
        for data, buffer in zip(sent, wanted, strict=True):
            buffer[...] = data


class _Round:
    """One step: what each arrived rank brought."""

    def __init__(self) -> None:
        self.steps: dict[int, str] = {}
        self.values: dict[int, Any] = {}
        self.absent: list[int] | None = None
        """The ranks for which this round was given up."""


class _Room:
    """Where the ranks of one group meet, round by round."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self._changed = threading.Condition()
        self._rounds: defaultdict[int, _Round] = defaultdict(_Round)
        self._next = [0] * size
        self._left: set[int] = set()

    def leave(self, rank: int) -> None:
        """The rank will take no further step."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def meet(self, rank: int, step: str, value: Any) -> list[Any]:
        """Wait until every rank has brought its value to this rank's next round; the values in rank order."""
        with self._changed:
            current = self._enter(rank)
            current.steps[rank] = step
            current.values[rank] = value
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled(current), self.timeout)
            if len(current.values) < self.size:
                self._give_up(current)
                raise absence(step, rank, self.timeout, current.absent or ())
        if len(set(current.steps.values())) > 1:
            raise mismatch([current.steps[r] for r in range(self.size)], rank)
        return [current.values[r] for r in range(self.size)]

    def _enter(self, rank: int) -> _Round:
        while True:
            current = self._rounds[self._next[rank]]
            self._next[rank] += 1
            self._rounds.pop(min(self._next) - 1, None)
            if current.absent is None:
                return current

    def _settled(self, current: _Round) -> bool:
        missing = set(range(self.size)) - current.values.keys()
        return not missing or current.absent is not None or bool(missing & self._left)

    def _give_up(self, current: _Round) -> None:
        if current.absent is None:
            missing = set(range(self.size)) - current.values.keys()
            current.absent = sorted(missing & self._left or missing)
            self._changed.notify_all()
