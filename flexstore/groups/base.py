"""`ProcessGroup`: the few collectives flexstore needs, and how ``group=None`` is resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@runtime_checkable
class ProcessGroup(Protocol):
    """A fixed set of ranks ``0 … size-1`` that call the same steps in the same order.

    All methods are collective: every rank of the group calls them. They raise `GroupTimeoutError` naming the absent
    ranks when some rank does not arrive within ``timeout`` seconds.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout(self) -> float:
        """Seconds that a step waits for its last rank."""
        ...

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """Every rank's ``value`` (any picklable object), in rank order, on every rank.

        Args:
            step: what this is part of, for the error when a rank is absent; equal on all ranks.
        """
        ...

    def exchange(
        self,
        step: str,
        sends: Sequence[tuple[int, npt.NDArray[np.uint8]]],
        receives: Sequence[tuple[int, npt.NDArray[np.uint8]]],
    ) -> None:
        """Point-to-point transfer of bytes.

        Args:
            step: as for `all_gather`.
            sends: ``(destination rank, contiguous uint8 array)``.
            receives: ``(source rank, contiguous writable uint8 array)``. The messages between two ranks match in the
                order given, and in size. A rank never lists itself.
        """
        ...
