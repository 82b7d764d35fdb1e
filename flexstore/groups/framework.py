"""`FrameworkGroup`: what the groups of all training frameworks have in common.

Promises: the contract of `ProcessGroup` over any framework that can gather an object, can send and receive an array,
and started through a key-value store. Nothing is handed to the framework before all ranks have arrived (see
`Arrivals`). The errors of the framework itself become `GroupError`. It imports no framework, starts no process and
creates no group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flexstore.errors import GroupError
from flexstore.groups.arrival import Arrivals, RendezvousStore
from flexstore.groups.pairwise import Meeting, Message, exchange_step, meetings
from flexstore.groups.wire import pack, unpack

PIECE = 64 << 20
"""Bytes per message of the framework, so that its staging copies stay small beside the data."""


class FrameworkGroup(ABC):
    """One rank's end of a group that a training framework runs.

    Args:
        group: a group object of the framework, of which this process is a member; None is the default group. Several
            objects over the same ranks may be used in turn.
        timeout: seconds that a step waits for its last rank.

    Raises:
        GroupError: the framework's process group is not initialised, or this process is not in ``group``.
    """

    framework: ClassVar[str]
    initialiser: ClassVar[str]
    """What a user must call first."""

    def __init__(self, group: Any = None, timeout: float = 600.0) -> None:
        if not self.initialised():
            raise GroupError(
                f"{self.framework} has no process group yet", hint=f"call {self.initialiser}() on every rank first"
            )
        store, ranks, me = self._join(group)
        if me not in ranks:
            raise GroupError(
                f"this process is not in the group of ranks {list(ranks)}",
                rank=me,
                hint="call with a group on the ranks of that group only",
            )
        self._ranks = tuple(ranks)
        self._rank = self._ranks.index(me)
        self._timeout = timeout
        self._arrivals = Arrivals(store, self._ranks, self._rank, timeout)

    @classmethod
    @abstractmethod
    def initialised(cls) -> bool:
        """Whether the framework has a default group."""

    @classmethod
    @abstractmethod
    def accepts(cls, native: object) -> bool:
        """Whether ``native`` is a group object of the framework."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def timeout(self) -> float:
        return self._timeout

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """See `ProcessGroup.all_gather`."""
        payload = pack(value)  # before arriving, as it may fail on this rank only
        self._arrivals.arrive(step)
        with self._native(step):
            # Frameworks make no communicator for a rank alone.
            payloads = self._gather(payload) if self.size > 1 else [payload]
        return [unpack(received) for received in payloads]

    def exchange(self, step: str, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See `ProcessGroup.exchange`."""
        plan = meetings(self.rank, self.size, sends, receives)
        self._arrivals.arrive(exchange_step(step))
        with self._native(step):
            self._transfer(plan)

    def _transfer(self, plan: list[Meeting]) -> None:
        """Carry out an exchange; all ranks are there. In each meeting the lower rank sends first."""
        for meeting in plan:
            peer = self._ranks[meeting.peer]
            if self.rank < meeting.peer:
                self._send_all(meeting.sends, peer)
            for piece in _pieces(meeting.receives):
                self._receive(piece, peer)
            if self.rank > meeting.peer:
                self._send_all(meeting.sends, peer)

    def _send_all(self, arrays: list[npt.NDArray[np.uint8]], peer: int) -> None:
        for piece in _pieces(arrays):
            self._send(piece, peer)

    @contextmanager
    def _native(self, step: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise GroupError(
                f"{self.framework} could not communicate: {error}",
                rank=self.rank,
                step=step,
                hint="another rank has probably died; look in its log first",
            ) from error

    @abstractmethod
    def _join(self, group: Any) -> tuple[RendezvousStore, Sequence[int], int]:
        """Keep the native group; return the store, the global ranks of the group in order, and this process's."""

    @abstractmethod
    def _gather(self, payload: bytes) -> list[bytes]:
        """Every rank's bytes, in the order of the group's ranks."""

    @abstractmethod
    def _send(self, piece: npt.NDArray[np.uint8], peer: int) -> None:
        """Send to the global rank ``peer``; on return ``piece`` may change."""

    @abstractmethod
    def _receive(self, piece: npt.NDArray[np.uint8], peer: int) -> None:
        """Fill ``piece`` from the global rank ``peer``."""


def _pieces(arrays: list[npt.NDArray[np.uint8]]) -> Iterator[npt.NDArray[np.uint8]]:
    for array in arrays:
        for start in range(0, array.size, PIECE):
            yield array[start : start + PIECE]
