"""`SingleGroup`: the group of a process that works alone.

Promises: the same contract as every `ProcessGroup`, with one rank. It never waits, so it has no timeout to exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flexstore.groups.pairwise import Message, meetings


class SingleGroup:
    """Rank 0 of 1."""

    rank = 0
    size = 1
    timeout = 0.0

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """The one value, as it is."""
        return [value]

    def exchange(self, step: str, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Nothing to do.

        Raises:
            GroupError: a message is given; a rank alone has no peer.
        """
        meetings(self.rank, self.size, sends, receives)
