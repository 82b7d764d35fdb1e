"""`RecordingStore`: a store that writes down what is asked of another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from flexstore.backends.base import Buffer, ObjectInfo, PutMode, Store, SupportsUpload, Upload
from flexstore.backends.buffers import byte_view

Verb: TypeAlias = Literal["get", "get_into", "put", "head", "list", "delete", "upload", "write", "commit"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that succeeded: what, on which object (or prefix), and how many bytes it moved."""

    verb: Verb
    name: str
    nbytes: int


class RecordingStore:
    """A wrapper that is a `SupportsUpload` exactly if the inner store is one.

    Every verb counts, and of an upload its begin, its writes and its commit. `close` and `Upload.abort` are passed on
    without being counted. Thread-safe.

    Attributes:
        inner: the wrapped store.
        operations: what succeeded so far, in the order in which it ended.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.capabilities = inner.capabilities
        self.io = inner.io
        self.operations: list[Operation] = []
        self._lock = threading.Lock()
        if isinstance(inner, SupportsUpload):
            self.upload = partial(self._upload, inner)

    def count(self, *verbs: Verb) -> int:
        """How many operations of these verbs succeeded; of all verbs if none is named."""
        return len(self._of(verbs))

    def nbytes(self, *verbs: Verb) -> int:
        """How many bytes they moved."""
        return sum(operation.nbytes for operation in self._of(verbs))

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """Do one operation on the inner store and record it; every operation passes here.

        Args:
            verb: what is done.
            name: to which object.
            action: does it.
            nbytes: bytes moved, given the result.
        """
        result = action()
        with self._lock:
            self.operations.append(Operation(verb, name, nbytes(result)))
        return result

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Store.get`."""
        return self.perform("get", name, lambda: self.inner.get(name, start, stop), len)

    def get_into(self, name: str, start: int, buffers: Sequence[npt.NDArray[np.uint8]]) -> None:
        """See `Store.get_into`."""
        total = sum(buffer.size for buffer in buffers)
        self.perform("get_into", name, lambda: self.inner.get_into(name, start, buffers), lambda _: total)

    def put(self, name: str, parts: Iterable[Buffer], mode: PutMode = "overwrite") -> None:
        """See `Store.put`."""
        sizes: list[int] = []

        def counted() -> Iterator[Buffer]:
            for part in parts:
                sizes.append(byte_view(part).nbytes)
                yield part

        self.perform("put", name, lambda: self.inner.put(name, counted(), mode), lambda _: sum(sizes))

    def head(self, name: str) -> ObjectInfo:
        """See `Store.head`."""
        return self.perform("head", name, lambda: self.inner.head(name), _nothing)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        return iter(self.perform("list", prefix, lambda: tuple(self.inner.list(prefix)), _nothing))

    def delete(self, name: str) -> None:
        """See `Store.delete`."""
        self.perform("delete", name, lambda: self.inner.delete(name), _nothing)

    def close(self) -> None:
        """See `Store.close`."""
        self.inner.close()

    def _upload(self, inner: SupportsUpload, name: str, nbytes: int, mode: PutMode = "overwrite") -> Upload:
        upload = self.perform("upload", name, lambda: inner.upload(name, nbytes, mode), _nothing)
        return _RecordedUpload(self, name, upload)

    def _of(self, verbs: tuple[Verb, ...]) -> tuple[Operation, ...]:
        with self._lock:
            return tuple(operation for operation in self.operations if not verbs or operation.verb in verbs)


class _RecordedUpload:
    def __init__(self, store: RecordingStore, name: str, inner: Upload) -> None:
        self._store = store
        self._name = name
        self._inner = inner

    def write(self, offset: int, window: npt.NDArray[np.uint8]) -> None:
        self._store.perform("write", self._name, lambda: self._inner.write(offset, window), lambda _: window.size)

    def commit(self) -> None:
        self._store.perform("commit", self._name, self._inner.commit, _nothing)

    def abort(self) -> None:
        self._inner.abort()


def _nothing(_: object) -> int:
    return 0
