"""What a local store does beyond the conformance kit: disks that fail, drafts, folders."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flexstore.backends import drafts
from flexstore.backends.local import LocalStore
from flexstore.errors import StoreError
from flexstore.testing.uploads import page_aligned

WINDOW = LocalStore.io.request_nbytes


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def _entries(store: LocalStore) -> list[str]:
    """Everything under the root, drafts and folders, too."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*"))


def _failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def _upload(store: LocalStore, name: str, data: bytes) -> None:
    upload = store.upload(name, len(data))
    try:
        for start in range(0, len(data), WINDOW):
            upload.write(start, page_aligned(data[start : start + WINDOW]))
        upload.commit()
    except BaseException:
        upload.abort()
        raise


def _put(store: LocalStore, name: str, data: bytes) -> None:
    store.put(name, [data])


WRITERS = pytest.mark.parametrize("write", [_put, _upload])


# disks that fail


@WRITERS
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_x5_a_failed_write_leaves_the_old_object_and_nothing_else(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None], number: int
) -> None:
    write(store, "x", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", _failing(number))
        with pytest.raises(StoreError) as caught:
            write(store, "x", b"newer")
    assert caught.value.errno == number
    assert caught.value.file == "x"
    assert os.strerror(number) in str(caught.value)
    assert str(store.root) in str(caught.value)
    assert caught.value.hint
    assert store.get("x") == b"old"
    assert _entries(store) == ["x"]


@WRITERS
def test_a_failed_fsync_is_fatal_and_not_retried(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    write(store, "x", b"old")
    calls = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match="Input/output error"):
            write(store, "x", b"newer")
    assert len(calls) == 1
    assert store.get("x") == b"old"
    assert _entries(store) == ["x"]


def test_a_full_disk_is_noticed_before_the_upload_begins(store: LocalStore) -> None:
    exabyte = 1 << 60
    with pytest.raises(StoreError, match="cannot reserve space") as caught:
        store.upload("x", exabyte)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert caught.value.hint
    assert _entries(store) == []


def test_a_file_system_without_hard_links_says_so(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _failing(errno.EPERM))
    with pytest.raises(StoreError, match="no hard links"):
        store.put("x", [b"1"], "create")
    assert _entries(store) == []


def test_the_kernel_may_write_less_than_it_is_given(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, data[: max(1, len(data) // 2)], offset))
    data = np.random.default_rng(0).bytes(2 * WINDOW + 100)
    _put(store, "put", data)
    _upload(store, "upload", data)
    assert store.get("put") == store.get("upload") == data


def test_the_kernel_may_read_less_than_it_is_asked_for(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 10
    store.put("x", [data])
    whole, whole_vector = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, offset: whole(fd, max(1, nbytes // 3), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: whole_vector(fd, [views[0][:7]], offset))
    target = np.zeros(len(data), np.uint8)
    store.get_into("x", 0, [target[:5], target[5:100], target[100:]])
    assert store.get("x") == target.tobytes() == data


def test_a_file_that_shrinks_while_it_is_read_is_an_error(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("x", [b"0123456789"])
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(StoreError, match="ended at byte 2"):
        store.get("x", 2)
    with pytest.raises(StoreError, match="ended at byte 3"):
        store.get_into("x", 3, [np.zeros(5, np.uint8)])


# file systems


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_file_systems_without_direct_io_are_written_through_the_page_cache(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plain = os.open

    def no_direct(path: str, flags: int, *args: Any) -> int:
        if flags & drafts._O_DIRECT:
            raise OSError(number, os.strerror(number))
        return plain(path, flags, *args)

    monkeypatch.setattr(os, "open", no_direct)
    data = np.random.default_rng(0).bytes(WINDOW + 5000)
    _upload(store, "x", data)
    assert store.get("x") == data


def test_devices_that_want_a_coarser_alignment_are_written_through_the_page_cache(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite
    begun: list[int] = []
    upload = store.upload("x", WINDOW)

    def strict(fd: int, data: memoryview, offset: int) -> int:
        begun.append(fd)
        if len(begun) == 1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", strict)
    data = np.random.default_rng(0).bytes(WINDOW)
    upload._direct = os.dup(upload._draft.fd) if upload._direct is None else upload._direct
    upload.write(0, page_aligned(data))
    upload.commit()
    assert len(set(begun)) == 2
    assert store.get("x") == data


def test_unaligned_windows_are_taken(store: LocalStore) -> None:
    data = np.random.default_rng(0).bytes(2 * WINDOW)
    shifted = page_aligned(b"\0" + data)[1:]
    upload = store.upload("x", len(data))
    upload.write(WINDOW, shifted[WINDOW:])
    upload.write(0, shifted[:WINDOW])
    upload.commit()
    assert store.get("x") == data


# drafts


def test_the_names_of_drafts_are_reserved(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="reserved"):
        store.put(".flexstore-1-0123456789abcdef.tmp", [b"1"])


def test_x5_a_writer_that_is_killed_leaves_the_old_object(store: LocalStore) -> None:
    store.put("x", [b"old"])
    code = f"""
import os, signal
from flexstore.backends.local import LocalStore
def parts():
    yield b"new" * 100000
    os.kill(os.getpid(), signal.SIGKILL)
    yield b"never"
LocalStore({str(store.root)!r}).put("x", parts())
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == -signal.SIGKILL
    assert store.get("x") == b"old"
    assert [info.name for info in store.list()] == ["x"]
    assert len(_entries(store)) == 2, "the draft of the dead writer"
    assert store.sweep(before=0) == 0
    assert store.sweep(before=store.head("x").modified + 3600) == 1
    assert _entries(store) == ["x"]


def test_sweep_touches_drafts_only(store: LocalStore) -> None:
    store.put(".hidden", [b"1"])
    store.put("a/x.tmp", [b"2"])
    assert store.sweep(before=1e12) == 0
    assert _entries(store) == [".hidden", "a", "a/x.tmp"]


def test_abort_waits_for_the_writes_under_way(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the file under a writer could hand its number to another file, and the write would land there."""
    upload = store.upload("x", 100)
    begun, go_on = threading.Event(), threading.Event()
    events: list[str] = []
    wait_for, close, pwrite = upload._changed.wait_for, os.close, os.pwrite

    def waits(condition: Callable[[], bool]) -> bool:
        go_on.set()
        return wait_for(condition)

    def closes(fd: int) -> None:
        events.append("closed")
        go_on.set()
        close(fd)

    def writes(fd: int, data: memoryview, offset: int) -> int:
        begun.set()
        go_on.wait()
        events.append("written")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(upload._changed, "wait_for", waits)
    monkeypatch.setattr(os, "close", closes)
    monkeypatch.setattr(os, "pwrite", writes)
    writer = threading.Thread(target=upload.write, args=(0, np.zeros(100, np.uint8)))
    writer.start()
    begun.wait()
    upload.abort()
    writer.join()
    assert events == ["written", "closed"]
    assert _entries(store) == []


def test_no_file_stays_open(store: LocalStore) -> None:
    before = os.listdir("/proc/self/fd")
    store.put("x", [b"1"])
    _upload(store, "y", bytes(2 << 20))
    store.upload("z", 2 << 20).abort()
    store.get("x")
    with pytest.raises(StoreError):
        store.get("x", 0, 9)
    with pytest.raises(StoreError):
        store.upload("z", 5).commit()
    assert os.listdir("/proc/self/fd") == before


# folders


def test_every_new_folder_and_name_is_synced(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    plain = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        plain(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store.put("a/b/x", [b"1"])
    root = store.root
    drafts_synced = [path for path in synced if ".flexstore-" in path]
    assert [path for path in synced if path not in drafts_synced] == [
        str(root.parent), str(root), str(root / "a"), str(root / "a" / "b"),
    ]  # fmt: skip
    assert len(drafts_synced) == 1
    assert synced.index(drafts_synced[0]) == len(synced) - 2, "the file before its name"


def test_delete_is_synced_and_prunes_empty_folders(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a/b/x", [b"1"])
    store.put("a/y", [b"2"])
    synced = []
    monkeypatch.setattr(drafts.os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    store.delete("a/b/x")
    assert synced == [str(store.root / "a" / "b")]
    assert _entries(store) == ["a", "a/y"]
    store.delete("a/y")
    assert _entries(store) == []
    assert store.root.is_dir()


def test_a_folder_that_is_pruned_under_a_deleter_is_no_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/x", [b"1"])
    plain = os.unlink

    def unlink_and_prune(path: str) -> None:
        plain(path)
        os.rmdir(os.path.dirname(path))

    monkeypatch.setattr(os, "unlink", unlink_and_prune)
    store.delete("a/x")
    assert _entries(store) == []


@WRITERS
def test_x5_a_failed_write_leaves_no_folder(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    monkeypatch.setattr(os, "pwrite", _failing(errno.EIO))
    with pytest.raises(StoreError):
        write(store, "a/b/x", b"1")
    assert _entries(store) == []


def test_a_folder_that_is_pruned_under_a_writer_is_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/x", [b"1"])
    plain = os.open
    pruned = []

    def open_after_prune(path: str, flags: int, *args: Any) -> int:
        if flags & os.O_CREAT and len(pruned) < 3:
            pruned.append(path)
            store.delete("a/x")
            (store.root / "a").rmdir() if (store.root / "a").is_dir() else None
        return plain(path, flags, *args)

    monkeypatch.setattr(os, "open", open_after_prune)
    store.put("a/y", [b"2"])
    assert len(pruned) == 3
    assert store.get("a/y") == b"2"


def test_permissions_follow_the_umask(store: LocalStore) -> None:
    old = os.umask(0o027)
    try:
        store.put("x", [b"1"])
    finally:
        os.umask(old)
    assert (store.root / "x").stat().st_mode & 0o777 == 0o640
