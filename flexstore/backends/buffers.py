"""Bytes of a caller's buffer, seen without a copy."""

from __future__ import annotations

import numpy as np

from flexstore.backends.base import Buffer


def byte_view(buffer: Buffer) -> memoryview:
    """A flat view of the bytes of ``buffer``, which must be C-contiguous.

    Raises:
        TypeError: it is not.
    """
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty view cannot be cast
