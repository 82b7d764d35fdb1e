"""What the tests of the stories share: ranks that are threads, the states they hold, and what they ask of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt

import flexstore as fs
from flexstore.backends.base import IoModel, Store
from flexstore.backends.memory import MemoryStore
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import Cut, RecordingStore

T = TypeVar("T")

STRATEGIES = ("distcp", "safetensors")
URL = "handed://checkpoint"
"""With ``storage_options=handing(store)``; needs the fixture ``handed`` of conftest.py."""


def handing(store: Store) -> dict[str, Store]:
    """The storage options with which `URL` is the given store."""
    return {"store": store}


def outcomes(world_size: int, fn: Callable[[ThreadGroup], T], timeout: float = 60.0) -> list[T | Exception]:
    """What ``fn`` returned or raised on every rank."""

    def caught(group: ThreadGroup) -> T | Exception:
        try:
            return fn(group)
        except Exception as error:
            return error

    return run(world_size, caught, timeout=timeout)


def filled(cuts: Iterable[Cut], rank: int) -> dict[str, Any]:
    """The state of a rank; a rank that holds nothing of a tensor has no such name."""
    return {cut.key: cut.filled(rank) for cut in cuts if cut.ranks[rank]}


def zeroed(cuts: Iterable[Cut], rank: int) -> dict[str, Any]:
    """The same state to load into."""
    return {cut.key: cut.zeroed(rank) for cut in cuts if cut.ranks[rank]}


def bits(tensor: npt.NDArray[Any]) -> bytes:
    """The row-major bytes of a tensor: equal exactly if the values are, nan and signed zeros included."""
    return np.asarray(tensor).tobytes()


def contents(state: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """The bytes of every shard of a flat state."""
    return {key: [bits(shard.local_tensor) for shard in shards] for key, shards in state.items()}


def stored(url: str, **options: Any) -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint."""
    return {key: bits(tensor.read()) for key, tensor in fs.open_checkpoint(url, **options).items()}


def names(store: Store) -> set[str]:
    """The objects of a store."""
    return {info.name for info in store.list()}


def memory_store(**io: int) -> MemoryStore:
    """A fresh folder in memory, with another `IoModel` if one is described."""
    store = MemoryStore(f"stories/{uuid4().hex}")
    store.io = replace(IoModel(), **io)
    return store


@contextmanager
def emptied(store: Store) -> Iterator[Store]:
    """The store, with all its objects removed in the end."""
    try:
        yield store
    finally:
        for name in names(store):
            store.delete(name)


def published(store: Store) -> bytes:
    """The manifest's document."""
    return store.get(MANIFEST_NAME)


class CountingGroup:
    """A group that writes down its collective steps."""

    def __init__(self, inner: ThreadGroup) -> None:
        self.rank, self.size, self.timeout = inner.rank, inner.size, inner.timeout
        self.exchange = inner.exchange
        self.steps: list[str] = []
        self._inner = inner

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """See `ProcessGroup.all_gather`."""
        self.steps.append(step)
        return self._inner.all_gather(step, value)


class LentStore(RecordingStore):
    """A store that outlives those who close it."""

    def close(self) -> None:
        """Nothing: the lender closes it."""


class StreamStore(RecordingStore):
    """The seven verbs of a store, without its fast path: every file is one `Store.put`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        vars(self).pop("upload", None)
