"""The order in which a rank meets the others when bytes go from rank to rank.

Promises: a pure plan in which no set of ranks can wait for each other in a circle. It moves nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flexstore.errors import GroupError

Message = tuple[int, npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Meeting:
    """What two ranks pass each other, in the order given to `ProcessGroup.exchange`."""

    peer: int
    sends: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    receives: list[npt.NDArray[np.uint8]] = field(default_factory=list)


def meetings(rank: int, size: int, sends: Sequence[Message], receives: Sequence[Message]) -> list[Meeting]:
    """This rank's meetings, in order: ranks ``a`` and ``b`` meet in round ``(a + b) mod size``.

    A rank has at most one partner per round, and all ranks go through the rounds in the same order, so the earliest
    unfinished meeting can always proceed, provided that in it the lower rank sends first.

    Raises:
        GroupError: a peer is this rank itself or not a rank of the group.
    """
    found: dict[int, Meeting] = {}
    for peer, data in _checked(rank, size, sends):
        found.setdefault(peer, Meeting(peer)).sends.append(data)
    for peer, data in _checked(rank, size, receives):
        found.setdefault(peer, Meeting(peer)).receives.append(data)
    return sorted(found.values(), key=lambda meeting: (rank + meeting.peer) % size)


def exchange_step(step: str) -> str:
    """The name under which the ranks arrive at an exchange, as one that gathers in the same step is not there too."""
    return f"{step} (exchange)"


def _checked(rank: int, size: int, messages: Iterable[Message]) -> Iterable[Message]:
    for peer, data in messages:
        if peer == rank or not 0 <= peer < size:
            raise GroupError(f"rank {peer} cannot be the peer of rank {rank} in a group of {size}", rank=rank)
        yield peer, data
