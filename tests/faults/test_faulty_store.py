"""The fault injector itself, and what a store survives of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flexstore.backends.base import Store, SupportsUpload
from flexstore.backends.local import LocalStore
from flexstore.backends.memory import MemoryStore
from flexstore.errors import StoreError
from flexstore.testing import FaultyStore, InjectedFault, Operation, RecordingStore, flip_bit


@pytest.fixture
def inner(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def _use(store: RecordingStore) -> None:
    """Nine operations, one of each kind."""
    assert isinstance(store, SupportsUpload)
    store.put("a", [b"123", b"45"])
    upload = store.upload("b", 3)
    try:
        upload.write(0, np.frombuffer(b"abc", np.uint8))
        upload.commit()
    except StoreError:
        upload.abort()
        raise
    assert store.get("a", 1, 3) == b"23"
    store.get_into("b", 0, [np.zeros(2, np.uint8)])
    assert store.head("a").nbytes == 5
    assert [info.name for info in store.list("")] == ["a", "b"]
    store.delete("a")


def test_recording_store_records_every_operation(inner: LocalStore) -> None:
    store = RecordingStore(inner)
    _use(store)
    assert store.operations == [
        Operation("put", "a", 5),
        Operation("upload", "b", 0),
        Operation("write", "b", 3),
        Operation("commit", "b", 0),
        Operation("get", "a", 2),
        Operation("get_into", "b", 2),
        Operation("head", "a", 0),
        Operation("list", "", 0),
        Operation("delete", "a", 0),
    ]
    assert store.count() == 9
    assert store.count("put", "write") == 2
    assert store.nbytes("put", "write") == 8
    assert store.nbytes("get", "get_into") == 4


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fail_at", range(1, 10))
def test_the_chosen_operation_fails(inner: LocalStore, fail_at: int, when: str) -> None:
    store = FaultyStore(inner, fail_at, when="after" if when == "after" else "before")
    with pytest.raises(InjectedFault, match=rf"{when} operation {fail_at},"):
        _use(store)
    assert store.has_failed
    assert store.count() == fail_at - (when == "before")
    _use(store)


def test_before_does_nothing_and_after_does_all(inner: LocalStore) -> None:
    with pytest.raises(InjectedFault):
        FaultyStore(inner, 1).put("x", [b"1"])
    assert list(inner.list()) == []
    with pytest.raises(InjectedFault):
        FaultyStore(inner, 1, when="after").put("x", [b"1"])
    assert inner.get("x") == b"1"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fail_at", range(1, 10))
def test_a_dead_process_does_nothing_more(inner: LocalStore, fail_at: int, when: str) -> None:
    store = FaultyStore(inner, fail_at, when="after" if when == "after" else "before", dead=True)
    with pytest.raises(InjectedFault):
        _use(store)
    left = list(inner.list())
    with pytest.raises(InjectedFault, match="died"):
        store.put("z", [b"later"])
    with pytest.raises(InjectedFault, match="died"):
        store.delete("a")
    assert list(inner.list()) == left


def test_a_store_that_died_is_whole_for_the_next_process(inner: LocalStore) -> None:
    store = FaultyStore(inner, verbs=("commit",), fail_at=1, dead=True)
    with pytest.raises(InjectedFault):
        _use(store)
    assert [info.name for info in inner.list()] == ["a"]


def test_only_the_chosen_verbs_count(inner: LocalStore) -> None:
    store = FaultyStore(inner, 2, verbs=("head",))
    store.put("x", [b"1"])
    store.head("x")
    assert store.get("x") == b"1"
    with pytest.raises(InjectedFault, match="head 'x'"):
        store.head("x")


def test_the_error_is_the_callers(inner: LocalStore) -> None:
    with pytest.raises(TimeoutError, match="injected"):
        FaultyStore(inner, 1, error=TimeoutError).head("x")


def test_exactly_one_of_many_threads_is_hit(inner: LocalStore) -> None:
    store = FaultyStore(inner, 20)

    def put(number: int) -> bool:
        try:
            store.put(f"{number}", [b"x"])
        except InjectedFault:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(40))) == 39
    assert len(list(inner.list())) == 39


def test_without_a_fault_it_is_the_inner_store(inner: LocalStore) -> None:
    store = FaultyStore(inner)
    _use(store)
    assert not store.has_failed
    assert (store.url, store.io, store.capabilities) == (inner.url, inner.io, inner.capabilities)


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_flip_bit_changes_one_bit_and_back(tmp_path: Path, kind: str) -> None:
    store: Store = LocalStore(tmp_path) if kind == "folder" else MemoryStore(f"flips{tmp_path}")
    store.put("x", [b"\0\0\0"])
    flip_bit(tmp_path if kind == "folder" else store, "x", 9)
    assert store.get("x") == b"\0\2\0"
    flip_bit(store, "x", 9)
    assert store.get("x") == b"\0\0\0"
    with pytest.raises(ValueError, match="no bit 24"):
        flip_bit(store, "x", 24)
