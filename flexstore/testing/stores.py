"""The conformance kit of stores: one test per promise of `flexstore.backends.base.Store`. Needs pytest.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "root")

Every call of ``open_store`` must open a new handle on the same root, which is empty when the test begins. A store that
takes uploads subclasses `flexstore.testing.UploadConformance` instead, which has these tests and more. For messages
that show the values, call ``pytest.register_assert_rewrite("flexstore.testing")`` in your ``conftest.py``.

The kit cannot prove durability: no test sees the disk after a loss of power.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeAlias

import numpy as np
import pytest

from flexstore.backends.base import Buffer, Capabilities, IoModel, ObjectInfo, Store, SupportsUpload
from flexstore.errors import FlexstoreError, ObjectExistsError, ObjectNotFoundError, StoreError

OpenStore: TypeAlias = Callable[[], Store]

UNSAFE_NAMES = (
    "", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", "a\\b", "a\nb", "a\0b",
    "a\x7f", "x" * 1025,
)  # fmt: skip
RACERS = 8


class SourceFailedError(Exception):
    """What the source of a put raises in these tests; no store may swallow or change it."""


class StoreConformance:
    """Subclass it and give it the fixture ``open_store``; see the module."""

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        """The store under test."""
        with closing(open_store()) as store:
            yield store

    @pytest.fixture
    def other(self, open_store: OpenStore) -> Iterator[Store]:
        """A second handle on the same root, as another process would have it."""
        with closing(open_store()) as other:
            yield other

    # what it is

    def test_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert isinstance(store.capabilities, Capabilities)
        assert isinstance(store.io, IoModel)
        assert isinstance(store.url, str)
        assert store.url

    def test_io_model_is_usable(self, store: Store) -> None:
        assert store.io.request_nbytes > 0
        assert store.io.request_nbytes % 4096 == 0, "windows must start on whole pages"
        assert store.io.read_nbytes > 0
        assert store.io.gap_nbytes >= 0
        assert store.io.parallelism > 0

    def test_upload_is_tested_if_there_is_one(self, store: Store) -> None:
        from flexstore.testing.uploads import UploadConformance

        assert isinstance(store, SupportsUpload) == isinstance(self, UploadConformance)

    # put, get, head

    def test_get_returns_what_was_put(self, store: Store, other: Store) -> None:
        store.put("a/b.bin", [b"some ", b"bytes"])
        assert store.get("a/b.bin") == b"some bytes"
        assert other.get("a/b.bin") == b"some bytes"

    def test_every_kind_of_buffer_is_taken(self, store: Store) -> None:
        array = np.arange(3, dtype=np.uint8)
        parts: list[Buffer] = [b"b", bytearray(b"y"), memoryview(b"t"), array, array[1:], np.empty(0, np.uint8), b""]
        store.put("x", parts)
        assert store.get("x") == b"byt\0\1\2\1\2"

    def test_views_of_wider_elements_are_written_as_bytes(self, store: Store) -> None:
        wide = np.arange(6, dtype="<u4").reshape(2, 3)
        store.put("x", [wide.data])
        assert store.get("x") == wide.tobytes()

    def test_empty_objects_exist(self, store: Store) -> None:
        store.put("empty", [])
        store.put("also/empty", [b"", b""])
        assert store.get("empty") == store.get("also/empty") == b""
        assert store.head("empty").nbytes == 0
        assert [info.name for info in store.list()] == ["also/empty", "empty"]
        store.get_into("empty", 0, [])

    def test_objects_of_several_requests_survive(self, store: Store) -> None:
        data = np.random.default_rng(0).integers(0, 256, store.io.request_nbytes + 4097, np.uint8)
        store.put("large", [data[:5], data[5:]])
        back = np.zeros_like(data)
        store.get_into("large", 0, [back])
        assert np.array_equal(back, data)

    def test_put_replaces(self, store: Store, other: Store) -> None:
        store.put("x", [b"a longer first version"])
        store.put("x", [b"second"])
        assert other.get("x") == b"second"
        assert other.head("x").nbytes == 6

    def test_parts_are_consumed_lazily_and_their_buffer_may_be_reused(self, store: Store) -> None:
        buffer = bytearray(4)

        def parts() -> Iterator[bytearray]:
            for number in range(100):
                buffer[:] = number.to_bytes(4, "little")
                yield buffer

        store.put("x", parts())
        assert np.frombuffer(store.get("x"), "<u4").tolist() == list(range(100))

    def test_what_was_put_does_not_change_with_the_buffer(self, store: Store) -> None:
        buffer = bytearray(b"before")
        store.put("x", [buffer])
        buffer[:] = b"after!"
        assert store.get("x") == b"before"

    def test_head_tells_name_size_and_time(self, store: Store) -> None:
        store.put("a/x", [b"12345"])
        info = store.head("a/x")
        assert isinstance(info, ObjectInfo)
        assert (info.name, info.nbytes) == ("a/x", 5)
        assert info.modified > 1e9, "modified is in POSIX seconds"

    # ranges

    def test_get_takes_half_open_ranges(self, store: Store) -> None:
        store.put("x", [b"0123456789"])
        assert store.get("x", 2, 5) == b"234"
        assert store.get("x", 7) == b"789"
        assert store.get("x", 0, 10) == b"0123456789"
        assert store.get("x", 4, 4) == store.get("x", 10) == store.get("x", 10, 10) == b""

    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (8, 11), (11, None), (11, 12), (-1, None), (-3, 2), (5, 4)])
    def test_get_refuses_ranges_outside_the_object(self, store: Store, start: int, stop: int | None) -> None:
        store.put("x", [b"0123456789"])
        with pytest.raises(StoreError, match="x"):
            store.get("x", start, stop)

    def test_get_into_scatters(self, store: Store) -> None:
        store.put("x", [bytes(range(100))])
        target = np.full(100, 255, np.uint8)
        store.get_into("x", 10, [target[50:60], target[0:1], target[20:20], target[80:100]])
        filled = np.full(100, 255, np.uint8)
        filled[50:60], filled[0], filled[80:100] = range(10, 20), 20, range(21, 41)
        assert np.array_equal(target, filled)

    def test_get_into_takes_thousands_of_buffers(self, store: Store) -> None:
        data = np.random.default_rng(0).integers(0, 256, 5000 * 3, np.uint8)
        store.put("x", [data])
        target = np.zeros((5000, 3), np.uint8)
        store.get_into("x", 0, list(target))
        assert np.array_equal(target.reshape(-1), data)

    def test_a_short_object_is_an_error_for_get_into(self, store: Store) -> None:
        store.put("x", [b"0123456789"])
        with pytest.raises(StoreError, match="x"):
            store.get_into("x", 5, [np.zeros(3, np.uint8), np.zeros(3, np.uint8)])

    @pytest.mark.parametrize("start", [-1, 11])
    def test_get_into_refuses_a_start_outside_the_object(self, store: Store, start: int) -> None:
        store.put("x", [b"0123456789"])
        with pytest.raises(StoreError, match="x"):
            store.get_into("x", start, [])

    # what is missing

    def test_missing_objects_are_not_found(self, store: Store) -> None:
        for ask in (store.get, store.head, lambda name: store.get_into(name, 0, [])):
            with pytest.raises(ObjectNotFoundError) as caught:
                ask("no/such")
            assert isinstance(caught.value, FileNotFoundError)
            assert caught.value.file == "no/such"

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        store.put("folder/x", [b"1"])
        for ask in (store.get, store.head):
            with pytest.raises(ObjectNotFoundError):
                ask("folder")
        store.delete("folder")
        assert store.get("folder/x") == b"1"

    def test_nothing_is_under_an_object(self, store: Store) -> None:
        store.put("x", [b"1"])
        for ask in (store.get, store.head):
            with pytest.raises(ObjectNotFoundError):
                ask("x/y")
        store.delete("x/y")

    def test_an_unused_root_is_empty(self, store: Store) -> None:
        assert list(store.list()) == []
        store.delete("x")

    # delete

    def test_delete_removes(self, store: Store, other: Store) -> None:
        store.put("a/x", [b"1"])
        store.put("a/y", [b"2"])
        store.delete("a/x")
        with pytest.raises(ObjectNotFoundError):
            other.get("a/x")
        assert [info.name for info in other.list()] == ["a/y"]

    def test_delete_is_idempotent(self, store: Store) -> None:
        store.put("x", [b"1"])
        store.delete("x")
        store.delete("x")

    def test_a_deleted_name_is_free(self, store: Store) -> None:
        store.put("a/b/x", [b"1"], "create")
        store.delete("a/b/x")
        store.put("a/b/x", [b"2"], "create")
        store.delete("a/b/x")
        store.put("a", [b"a name that was a folder's"])
        assert [info.name for info in store.list()] == ["a"]

    # list

    def test_list_is_recursive_and_sorted_by_name(self, store: Store) -> None:
        names = ["b", "a/x", "a-x", "a/b/c", "a.x", "B", "a/b-c", ".hidden", "10", "9", "ü"]
        for name in names:
            store.put(name, [name.encode()])
        infos = list(store.list())
        assert [info.name for info in infos] == sorted(names)
        assert [info.nbytes for info in infos] == [len(name.encode()) for name in sorted(names)]

    def test_list_takes_any_prefix_of_a_name(self, store: Store) -> None:
        for name in ("run/1/a", "run/1/b", "run/10/a", "run-2", "other"):
            store.put(name, [])
        listed = {prefix: [info.name for info in store.list(prefix)] for prefix in ("run/1", "run/1/", "ru", "run/1/a")}
        assert listed == {
            "run/1": ["run/1/a", "run/1/b", "run/10/a"],
            "run/1/": ["run/1/a", "run/1/b"],
            "ru": ["run-2", "run/1/a", "run/1/b", "run/10/a"],
            "run/1/a": ["run/1/a"],
        }

    def test_x9_no_prefix_leads_out_of_the_root(self, store: Store) -> None:
        store.put("x", [])
        for prefix in ("..", "../", "/", "./", "x/", "nothing"):
            assert list(store.list(prefix)) == []

    def test_list_and_head_agree(self, store: Store) -> None:
        store.put("a/x", [b"123"])
        assert list(store.list()) == [store.head("a/x")]

    # names

    @pytest.mark.parametrize("name", UNSAFE_NAMES, ids=[ascii(name)[:20] for name in UNSAFE_NAMES])
    def test_x9_unsafe_names_are_refused(self, store: Store, name: str) -> None:
        asked: list[Callable[[], object]] = [
            lambda: store.get(name),
            lambda: store.get_into(name, 0, []),
            lambda: store.put(name, [b"x"]),
            lambda: store.head(name),
            lambda: store.delete(name),
        ]
        for ask in asked:
            with pytest.raises(StoreError):
                ask()
        assert list(store.list()) == []

    # atomic

    def test_create_refuses_what_exists(self, store: Store, other: Store) -> None:
        store.put("x", [b"first"], "create")
        with pytest.raises(ObjectExistsError) as caught:
            other.put("x", [b"second"], "create")
        assert isinstance(caught.value, FileExistsError)
        assert caught.value.file == "x"
        assert store.get("x") == b"first"

    def test_an_object_is_invisible_until_its_put_returns(self, store: Store, other: Store) -> None:
        def parts() -> Iterator[bytes]:
            yield b"a" * (1 << 16)
            with pytest.raises(ObjectNotFoundError):
                other.get("x")
            assert list(other.list()) == []
            yield b"b"

        store.put("x", parts())
        assert other.head("x").nbytes == (1 << 16) + 1

    def test_the_old_object_is_whole_until_its_replacement_is(self, store: Store, other: Store) -> None:
        store.put("x", [b"old"])
        seen = []

        def parts() -> Iterator[bytes]:
            yield b"n" * (1 << 16)
            seen.append((other.get("x"), [info.nbytes for info in other.list()]))
            yield b"ew"

        store.put("x", parts())
        if store.capabilities.atomic:
            assert seen == [(b"old", [3])]
        assert other.get("x") == b"n" * (1 << 16) + b"ew"

    @pytest.mark.parametrize("mode", ["overwrite", "create"])
    def test_x5_a_put_whose_source_fails_changes_nothing(self, store: Store, other: Store, mode: str) -> None:
        store.put("x", [b"old"])

        def parts() -> Iterator[bytes]:
            yield b"n" * (1 << 16)
            raise SourceFailedError("a source that breaks")

        for name in ("x", "new/y"):
            with pytest.raises((SourceFailedError, ObjectExistsError)) as caught:
                store.put(name, parts(), "create" if mode == "create" else "overwrite")
            assert caught.type is SourceFailedError or (name, mode) == ("x", "create")
        assert other.get("x") == b"old"
        assert [info.name for info in other.list()] == ["x"]

    def test_of_racing_creators_exactly_one_wins(self, open_store: OpenStore) -> None:
        start = threading.Barrier(RACERS)

        def create(racer: int) -> bool:
            with closing(open_store()) as store:
                start.wait()
                try:
                    store.put("deep/x", [bytes([racer]) * 1000, bytes([racer]) * 1000], "create")
                except ObjectExistsError:
                    return False
                return True

        with ThreadPoolExecutor(RACERS) as pool:
            won = [racer for racer, wins in enumerate(pool.map(create, range(RACERS))) if wins]
        with closing(open_store()) as store:
            found = store.get("deep/x")
            assert len(won) == 1 if store.capabilities.create else won
        assert found in [bytes([racer]) * 2000 for racer in won]

    def test_racing_writers_leave_one_whole_object(self, store: Store) -> None:
        start = threading.Barrier(RACERS)

        def write(racer: int) -> None:
            start.wait()
            store.put("x", [bytes([racer]) * 5000] * 4)

        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(write, range(RACERS)))
        found = store.get("x")
        assert found in [bytes([racer]) * 20000 for racer in range(RACERS)]

    def test_one_handle_serves_many_threads(self, store: Store) -> None:
        def work(worker: int) -> None:
            for number in range(10):
                name, data = f"{worker % 2}/{worker}/{number}", bytes([worker, number]) * 100
                store.put(name, [data])
                assert store.get(name, 2, 4) == data[2:4]
                store.delete(name)

        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(work, range(RACERS)))
        assert list(store.list()) == []

    # close

    def test_a_closed_store_answers_with_errors(self, open_store: OpenStore) -> None:
        store = open_store()
        store.put("x", [b"1"])
        store.close()
        asked: list[Callable[[], object]] = [
            lambda: store.get("x"),
            lambda: store.put("y", [b"2"]),
            lambda: store.head("x"),
            lambda: list(store.list()),
            lambda: store.delete("x"),
        ]
        for ask in asked:
            with pytest.raises(FlexstoreError):
                ask()
        with closing(open_store()) as again:
            assert again.get("x") == b"1"
            assert [info.name for info in again.list()] == ["x"]
