"""`MemoryStore`: objects in this process's memory, shared by all its threads. For tests, examples and notebooks.

``memory://name/sub`` is the folder ``name/sub`` of one tree per process: every store opened on a path sees the same
objects, and a store on ``memory://name`` sees those under ``sub/``, too. Atomic and create-only, nothing is durable:
the objects live until they are deleted or the process ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexstore.backends.base import Buffer, Capabilities, IoModel, ObjectInfo, PutMode, check_name
from flexstore.backends.buffers import byte_view
from flexstore.errors import ObjectExistsError, ObjectNotFoundError, StoreError

_SCHEME = "memory://"


@dataclass(frozen=True, slots=True)
class _Object:
    """A finished object: its bytes, never changed again, and when it was put (POSIX seconds)."""

    data: memoryview
    modified: float


_LOCK = threading.Lock()
_OBJECTS: dict[str, _Object] = {}


class MemoryStore:
    """A `Store` and `SupportsUpload` over the process's own memory.

    Args:
        path: a path in the tree, such as ``run/step_100``; ``memory://run/step_100`` means the same.

    Raises:
        StoreError: the path is not a safe name.
    """

    capabilities = Capabilities(durable=False)
    io = IoModel()

    def __init__(self, path: str) -> None:
        path = path.removeprefix(_SCHEME).strip("/")
        self.url = _SCHEME + path
        self._prefix = f"{check_name(path)}/" if path else ""
        self._is_open = True

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Store.get`."""
        data = self._object(name).data
        return bytes(_part(name, data, start, data.nbytes if stop is None else stop))

    def get_into(self, name: str, start: int, buffers: Sequence[npt.NDArray[np.uint8]]) -> None:
        """See `Store.get_into`."""
        data = _part(name, self._object(name).data, start, start + sum(buffer.size for buffer in buffers))
        for buffer in buffers:
            buffer.data[:] = data[: buffer.size]
            data = data[buffer.size :]

    def put(self, name: str, parts: Iterable[Buffer], mode: PutMode = "overwrite") -> None:
        """See `Store.put`."""
        self._key(name)
        data = bytearray()
        for part in parts:
            data += byte_view(part)
        self._publish(name, data, mode)

    def upload(self, name: str, nbytes: int, mode: PutMode = "overwrite") -> _MemoryUpload:
        """See `SupportsUpload.upload`."""
        self._key(name)
        return _MemoryUpload(self, name, nbytes, mode)

    def head(self, name: str) -> ObjectInfo:
        """See `Store.head`."""
        found = self._object(name)
        return ObjectInfo(name, found.data.nbytes, found.modified)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        self._check_open()
        start = len(self._prefix)
        with _LOCK:
            found = [(key, each) for key, each in _OBJECTS.items() if key.startswith(self._prefix + prefix)]
        infos = (ObjectInfo(key[start:], each.data.nbytes, each.modified) for key, each in found)
        return iter(sorted(infos, key=lambda info: info.name))

    def delete(self, name: str) -> None:
        """See `Store.delete`."""
        with _LOCK:
            _OBJECTS.pop(self._key(name), None)

    def close(self) -> None:
        """See `Store.close`. The objects stay."""
        self._is_open = False

    def _publish(self, name: str, data: bytearray, mode: PutMode) -> None:
        key = self._key(name)
        finished = _Object(memoryview(data).toreadonly(), time.time())
        with _LOCK:
            if mode == "create" and key in _OBJECTS:
                raise ObjectExistsError(f"the object exists in {self.url}", file=name)
            _OBJECTS[key] = finished

    def _object(self, name: str) -> _Object:
        with _LOCK:
            found = _OBJECTS.get(self._key(name))
        if found is None:
            raise ObjectNotFoundError(f"no such object in {self.url}", file=name)
        return found

    def _key(self, name: str) -> str:
        self._check_open()
        return self._prefix + check_name(name)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"the store {self.url} is closed")


class _MemoryUpload:
    """An `Upload` into memory. Writes of different windows touch different bytes, so they need no lock."""

    def __init__(self, store: MemoryStore, name: str, nbytes: int, mode: PutMode) -> None:
        self._store = store
        self._name = name
        self._mode: PutMode = mode
        self._data: bytearray | None = bytearray(nbytes)
        self._lock = threading.Lock()
        self._missing = nbytes

    def write(self, offset: int, window: npt.NDArray[np.uint8]) -> None:
        """See `Upload.write`."""
        data = self._unfinished()
        target = memoryview(data)
        _part(self._name, target, offset, offset + window.size)[:] = window.data
        with self._lock:
            self._missing -= window.size

    def commit(self) -> None:
        """See `Upload.commit`."""
        data = self._unfinished()
        self._data = None
        if self._missing:
            raise StoreError(f"upload ends with {self._missing} of {len(data)} bytes missing", file=self._name)
        self._store._publish(self._name, data, self._mode)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._data = None

    def _unfinished(self) -> bytearray:
        data = self._data
        if data is None:
            raise StoreError("the upload was committed or aborted already", file=self._name)
        return data


def _part(name: str, data: memoryview, start: int, stop: int) -> memoryview:
    if not 0 <= start <= stop <= data.nbytes:
        raise StoreError(f"range [{start}, {stop}) does not lie in an object of {data.nbytes} bytes", file=name)
    return data[start:stop]
