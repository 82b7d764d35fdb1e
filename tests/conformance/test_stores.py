"""The stores that flexstore ships keep every promise of the conformance kit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore
from flexstore.backends.memory import MemoryStore
from flexstore.testing import FaultyStore, RecordingStore, StoreConformance, UploadConformance
from flexstore.testing.stores import OpenStore


class TestLocalStore(UploadConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: LocalStore(tmp_path / "made" / "on demand")


class TestLocalStoreInSharedMemory(UploadConformance):
    """tmpfs: another file system, with other answers to O_DIRECT."""

    @pytest.fixture
    def open_store(self) -> Iterator[OpenStore]:
        root = Path(tempfile.mkdtemp(prefix="flexstore-test-", dir="/dev/shm"))
        yield lambda: LocalStore(root)
        shutil.rmtree(root)


class TestMemoryStore(UploadConformance):
    @pytest.fixture
    def open_store(self, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
        path = f"conformance/{id(request.node)}"
        yield lambda: MemoryStore(path)
        store = MemoryStore(path)
        for info in store.list():
            store.delete(info.name)


class TestWrappedStore(UploadConformance):
    """A wrapper that injects no fault cannot be told from what it wraps."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: FaultyStore(RecordingStore(LocalStore(tmp_path)))


class TestWrapperOfAStoreWithoutUpload(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: RecordingStore(_seven_verbs(LocalStore(tmp_path)))


def _seven_verbs(store: LocalStore) -> Store:
    class Narrow:
        url, capabilities, io = store.url, store.capabilities, store.io
        get, get_into, put, head = store.get, store.get_into, store.put, store.head
        list, delete, close = store.list, store.delete, store.close

    return Narrow()
