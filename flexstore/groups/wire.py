"""Values on their way between ranks.

Promises: any picklable object arrives equal to what was sent. Pickle is safe here because the ranks of one job run one
program and trust each other; nothing that was read from a store ever passes through this file.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(value: object) -> bytes:
    """The value as bytes; raises whatever its pickling raises."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(payload: bytes) -> Any:
    """A new value, equal to the one that was packed."""
    return pickle.loads(payload)  # noqa: S301
