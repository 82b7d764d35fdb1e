"""The conformance kit of stores that take uploads: `StoreConformance` and the promises of `SupportsUpload`."""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from flexstore.backends.base import ObjectInfo, Store, SupportsUpload, Upload
from flexstore.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from flexstore.testing.stores import UNSAFE_NAMES, StoreConformance

_PAGE = mmap.PAGESIZE


def page_aligned(data: bytes) -> npt.NDArray[np.uint8]:
    """``data`` in page-aligned memory whose capacity is whole pages, as the pipeline gives its windows."""
    capacity = max(_PAGE, -(-len(data) // _PAGE) * _PAGE)
    window = np.frombuffer(mmap.mmap(-1, capacity), np.uint8)[: len(data)]
    window[:] = np.frombuffer(data, np.uint8)
    return window


class UploadConformance(StoreConformance):
    """Subclass it and give it the fixture ``open_store``; see `flexstore.testing.stores`."""

    @pytest.fixture
    def uploader(self, store: Store) -> SupportsUpload:
        """The store under test, as a taker of uploads."""
        assert isinstance(store, SupportsUpload)
        return store

    @pytest.mark.parametrize(("windows", "rest"), [(0, 0), (0, 5000), (1, 0), (2, 0), (2, 4099)])
    def test_upload_takes_windows_in_any_order(
        self, store: Store, uploader: SupportsUpload, windows: int, rest: int
    ) -> None:
        window = store.io.request_nbytes
        data = np.random.default_rng(0).bytes(windows * window + rest)
        upload = uploader.upload("deep/x", len(data))
        for start in reversed(range(0, len(data), window)):
            upload.write(start, page_aligned(data[start : start + window]))
        upload.commit()
        assert store.head("deep/x").nbytes == len(data)
        assert store.get("deep/x") == data

    def test_upload_takes_windows_from_many_threads(self, store: Store, uploader: SupportsUpload) -> None:
        window = store.io.request_nbytes
        data = np.random.default_rng(0).bytes(3 * window + 17)
        upload = uploader.upload("x", len(data))

        def write(start: int) -> None:
            upload.write(start, page_aligned(data[start : start + window]))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(0, len(data), window)))
        upload.commit()
        assert store.get("x") == data

    def test_a_window_may_be_reused_at_once(self, store: Store, uploader: SupportsUpload) -> None:
        window = store.io.request_nbytes
        buffer = page_aligned(bytes(window))
        upload = uploader.upload("x", 2 * window)
        for number in range(2):
            buffer[:] = number + 1
            upload.write(number * window, buffer)
        buffer[:] = 9
        upload.commit()
        assert store.get("x") == b"\1" * window + b"\2" * window

    def test_upload_is_invisible_until_commit(self, store: Store, uploader: SupportsUpload, other: Store) -> None:
        upload = uploader.upload("x", 5)
        upload.write(0, page_aligned(b"bytes"))
        with pytest.raises(ObjectNotFoundError):
            other.get("x")
        assert list(other.list()) == []
        upload.commit()
        assert other.get("x") == b"bytes"

    def test_upload_replaces_only_at_commit(self, store: Store, uploader: SupportsUpload, other: Store) -> None:
        store.put("x", [b"old"])
        upload = uploader.upload("x", 5)
        upload.write(0, page_aligned(b"newer"))
        assert other.get("x") == b"old"
        upload.commit()
        assert other.get("x") == b"newer"

    def test_x5_abort_leaves_nothing(self, store: Store, uploader: SupportsUpload, other: Store) -> None:
        store.put("x", [b"old"])
        for name in ("x", "new/y"):
            upload = uploader.upload(name, 5)
            upload.write(0, page_aligned(b"newer"))
            upload.abort()
            upload.abort()
        assert other.get("x") == b"old"
        assert [info.name for info in other.list()] == ["x"]

    def test_an_aborted_upload_is_over(self, store: Store, uploader: SupportsUpload) -> None:
        upload = uploader.upload("x", 1)
        upload.abort()
        _refuses(upload)
        assert list(store.list()) == []

    def test_a_committed_upload_is_over(self, store: Store, uploader: SupportsUpload) -> None:
        upload = uploader.upload("x", 1)
        upload.write(0, page_aligned(b"1"))
        upload.commit()
        _refuses(upload)
        upload.abort()
        assert store.get("x") == b"1"

    def test_create_upload_refuses_what_exists(self, store: Store, uploader: SupportsUpload, other: Store) -> None:
        upload = uploader.upload("x", 6, "create")
        upload.write(0, page_aligned(b"second"))
        other.put("x", [b"first"])
        with pytest.raises(ObjectExistsError):
            upload.commit()
        upload.abort()
        assert store.get("x") == b"first"
        assert [info.nbytes for info in store.list()] == [5]

    def test_d14_an_incomplete_upload_is_not_committed(self, store: Store, uploader: SupportsUpload) -> None:
        window = store.io.request_nbytes
        upload = uploader.upload("x", 2 * window)
        upload.write(window, page_aligned(bytes(window)))
        with pytest.raises(StoreError, match="x"):
            upload.commit()
        upload.abort()
        assert list(store.list()) == []

    @pytest.mark.parametrize(("window", "nbytes"), [(0, 11), (1, 1)])
    def test_windows_past_the_end_are_refused(
        self, store: Store, uploader: SupportsUpload, window: int, nbytes: int
    ) -> None:
        upload = uploader.upload("x", 10)
        with pytest.raises(StoreError, match="x"):
            upload.write(window * store.io.request_nbytes, page_aligned(bytes(nbytes)))
        upload.abort()
        assert list(store.list()) == []

    @pytest.mark.parametrize("name", UNSAFE_NAMES, ids=[ascii(name)[:20] for name in UNSAFE_NAMES])
    def test_x9_upload_refuses_unsafe_names(self, store: Store, uploader: SupportsUpload, name: str) -> None:
        with pytest.raises(StoreError):
            uploader.upload(name, 1)
        assert list(store.list()) == []

    def test_of_racing_create_uploads_exactly_one_wins(self, store: Store, uploader: SupportsUpload) -> None:
        start = threading.Barrier(4)

        def create(racer: int) -> bool:
            upload = uploader.upload("x", 100, "create")
            upload.write(0, page_aligned(bytes([racer]) * 100))
            start.wait()
            try:
                upload.commit()
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = [racer for racer, wins in enumerate(pool.map(create, range(4))) if wins]
        assert len(won) == 1 if store.capabilities.create else won
        assert store.get("x") in [bytes([racer]) * 100 for racer in won]
        assert [type(info) for info in store.list()] == [ObjectInfo]


def _refuses(upload: Upload) -> None:
    with pytest.raises(StoreError):
        upload.write(0, page_aligned(b"1"))
    with pytest.raises(StoreError):
        upload.commit()
