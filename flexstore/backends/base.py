"""`Store`: atomic byte objects under a URL. The contract that `flexstore.testing` checks for every backend.

Names are relative, ``/``-separated, without empty, ``.`` or ``..`` pieces; `check_name` enforces it, so that a name
never leaves the store's root (X9). Stores are synchronous and thread-safe; concurrency belongs to the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from flexstore.core.names import check_name

__all__ = [
    "Buffer",
    "Capabilities",
    "IoModel",
    "ObjectInfo",
    "PutMode",
    "Store",
    "SupportsUpload",
    "Upload",
    "check_name",
]

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
PutMode: TypeAlias = Literal["overwrite", "create"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store promises.

    Attributes:
        create: ``put(..., mode="create")`` is atomic: of several racing writers exactly one wins.
        atomic: a reader sees the old or the new object, never a mixture or a part.
        durable: what a ``put`` returned from survives a crash of the machine.
    """

    create: bool = True
    atomic: bool = True
    durable: bool = True


@dataclass(frozen=True, slots=True)
class IoModel:
    """What the storage likes; the planner coalesces and splits by it.

    Attributes:
        request_nbytes: a good size of one write (a window of an upload), in bytes.
        read_nbytes: a good size of one read, in bytes.
        gap_nbytes: two ranges at most this far apart are fetched as one.
        parallelism: reads worth having in flight.
        write_parallelism: writes worth having in flight; more than reads, as filling a window takes its time as well.
    """

    request_nbytes: int = 4 << 20
    read_nbytes: int = 4 << 20
    gap_nbytes: int = 64 << 10
    parallelism: int = 2
    write_parallelism: int = 3


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: its name under the root, its size in bytes, and when it was last written (POSIX seconds)."""

    name: str
    nbytes: int
    modified: float


@runtime_checkable
class Store(Protocol):
    """Seven verbs. Every ``put`` is atomic and, where `capabilities` says so, durable on return."""

    url: str
    capabilities: Capabilities
    io: IoModel

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes ``start <= i < stop`` of an object (to its end if None).

        Raises:
            ObjectNotFoundError: no such object.
            StoreError: the range passes the end of the object, or the storage failed.
        """
        ...

    def get_into(self, name: str, start: int, buffers: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Fill ``buffers`` (1-D, contiguous, writable uint8), one after the other, from byte ``start`` on.

        Raises:
            ObjectNotFoundError: no such object.
            StoreError: the object ends before the buffers are full, or the storage failed.
        """
        ...

    def put(self, name: str, parts: Iterable[Buffer], mode: PutMode = "overwrite") -> None:
        """Write the concatenation of ``parts`` (consumed lazily, each may be reused after the next is asked for).

        Raises:
            ObjectExistsError: ``mode`` is ``"create"`` and the object exists.
            StoreError: the storage failed; the object is then as it was before.
        """
        ...

    def head(self, name: str) -> ObjectInfo:
        """Size and time of an object.

        Raises:
            ObjectNotFoundError: no such object.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All finished objects whose name starts with ``prefix``, sorted by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; no error if there is none."""
        ...

    def close(self) -> None:
        """Release what the store holds open. Further calls are errors."""
        ...


@runtime_checkable
class SupportsSweep(Protocol):
    """Optional: a store whose dead writers leave unfinished objects that `Store.list` does not show."""

    def sweep(self, before: float) -> int:
        """Remove unfinished objects last written before ``before`` (POSIX seconds); returns how many."""
        ...


class Upload(Protocol):
    """One object being written in windows, from any thread, in any order; invisible until `commit`."""

    def write(self, offset: int, window: npt.NDArray[np.uint8]) -> None:
        """Write ``window`` at byte ``offset``. The buffer may be reused when this returns."""
        ...

    def commit(self) -> None:
        """Make the object visible and durable."""
        ...

    def abort(self) -> None:
        """Forget it; leave nothing behind. Safe to call at any time, also after a failed `commit`."""
        ...


@runtime_checkable
class SupportsUpload(Protocol):
    """Optional fast path: a store that takes the windows of one object in parallel."""

    def upload(self, name: str, nbytes: int, mode: PutMode = "overwrite") -> Upload:
        """Begin an object of exactly ``nbytes`` bytes.

        Windows given to `Upload.write` start at multiples of ``io.request_nbytes``, and all but the last are that long.
        They come in page-aligned memory whose capacity is rounded up to whole pages.
        """
        ...
