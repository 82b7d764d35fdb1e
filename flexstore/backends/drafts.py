"""Drafts: local files written under a temporary name and published in one atomic step.

Promises: until `Draft.publish` nobody sees the object; after it the object is whole and its bytes and its name survive
a crash of the machine (as far as the file system keeps its word; tmpfs keeps nothing). A draft that fails leaves
nothing behind, one whose process dies leaves a temporary file that is never listed. A failed fsync is final: the
kernel may have dropped the pages already, so that a second, successful fsync would prove nothing.

Does not promise: that a folder which another process made a moment ago is durable itself; that process syncs it.

How the bytes travel. `LocalUpload` writes aligned windows with O_DIRECT where the file system takes it, which costs a
tenth of the CPU time of the page cache and keeps the throughput steady. Everything else goes through the page cache,
with ``POSIX_FADV_DONTNEED`` after every few MiB: on dirty pages it starts their writeback, so that the final fsync
finds little left to do, and the cache stays free for the training data.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from flexstore.backends.base import Buffer, PutMode
from flexstore.backends.buffers import byte_view
from flexstore.errors import FlexstoreError, ObjectExistsError, StoreError

_TEMPORARY = re.compile(r"\.flexstore-\d+-[0-9a-f]{16}\.tmp")
_FOLDER_RACES = 16
_WRITEBACK = 8 << 20
_SMALL = 1 << 20
_PAGE = mmap.PAGESIZE
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_HINTS = {
    errno.ENOSPC: "the disk is full: free some space or save elsewhere",
    errno.EDQUOT: "the disk quota is used up: free some space or save elsewhere",
    errno.EFBIG: "the file is larger than the file system or the process limit (ulimit -f) allows",
    errno.EACCES: "check the permissions of the folder",
    errno.EPERM: "the folder forbids it, or its file system has no hard links, which creating an object needs",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "too many open files: raise ulimit -n",
    errno.EIO: "the device reports an error: what was written may be lost, look at the system log",
}


@contextmanager
def reported(doing: str, name: str, path: str) -> Iterator[None]:
    """Turn an `OSError` of the body into a `StoreError` that says what was being done to which file, errno kept."""
    try:
        yield
    except FlexstoreError:
        raise
    except OSError as error:
        said = error.strerror or str(error)
        kind = ObjectExistsError if isinstance(error, FileExistsError) else StoreError
        failure = kind(f"cannot {doing} {path}: {said}", file=name, hint=_HINTS.get(error.errno or 0))
        failure.errno = error.errno
        raise failure from error


def is_temporary(basename: str) -> bool:
    """True for the file name of a draft."""
    return _TEMPORARY.fullmatch(basename) is not None


class Draft:
    """One file being written; leaving its ``with`` block without `publish` discards it.

    Args:
        name: the object's name, for messages.
        path: the final path. Missing folders above it are made.
        root: the folder up to which those that stay empty are removed again.

    Attributes:
        fd: the file, open for buffered writing.
        temporary: its present path.
    """

    def __init__(self, name: str, path: str, root: str) -> None:
        self._name = name
        self._path = path
        self._root = root
        self._end = 0
        self._started = 0
        self._is_open = True
        folder = os.path.dirname(path)
        self.temporary = os.path.join(folder, f".flexstore-{os.getpid()}-{secrets.token_hex(8)}.tmp")
        with reported("create", name, path):
            self.fd = _create(self.temporary, folder)

    def append(self, part: Buffer) -> None:
        """Write ``part`` after what was appended before. The buffer may be reused when this returns."""
        view = byte_view(part)
        with reported("write", self._name, self._path):
            for start in range(0, view.nbytes, _WRITEBACK):
                self._append_piece(view[start : start + _WRITEBACK])

    def _append_piece(self, piece: memoryview) -> None:
        write_fully(self.fd, piece, self._end)
        self._end += piece.nbytes
        if self._end - self._started >= _WRITEBACK:
            start_writeback(self.fd, self._started, self._end - self._started)
            self._started = self._end

    def publish(self, mode: PutMode) -> None:
        """Give the file its final name, durably.

        Raises:
            ObjectExistsError: ``mode`` is ``"create"`` and the name is taken.
            StoreError: the disk failed. If it was the last step, the sync of the folder, the object is visible
                although it may not survive a crash.
        """
        with reported("publish", self._name, self._path):
            os.fsync(self.fd)
            move = os.link if mode == "create" else os.replace
            move(self.temporary, self._path)
            self.discard()
            sync_folder(os.path.dirname(self._path))

    def discard(self) -> None:
        """Forget what is not published. May be called again."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)
            with suppress(OSError):  # published by os.replace, or the folder is gone: either way it is not there
                os.unlink(self.temporary)
            prune_folders(os.path.dirname(self._path), self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class LocalUpload:
    """An `Upload` into a draft; see `flexstore.backends.base.Upload`. Takes ownership of the draft.

    Windows may come from several threads. `commit` and `abort` wait for writes that are under way.

    Args:
        draft: the file.
        name: the object's name, for messages.
        nbytes: its exact size.
        mode: how to publish it.

    Raises:
        StoreError: there is no room for ``nbytes``; the draft is discarded then.
    """

    def __init__(self, draft: Draft, name: str, nbytes: int, mode: PutMode) -> None:
        self._draft = draft
        self._name = name
        self._nbytes = nbytes
        self._mode: PutMode = mode
        self._missing = nbytes
        self._writers = 0
        self._is_open = True
        self._changed = threading.Condition()
        self._direct: int | None = None
        try:
            with reported("reserve space for", name, draft.temporary):
                self._prepare()
        except BaseException:
            draft.discard()
            raise

    def _prepare(self) -> None:
        if self._nbytes >= _SMALL:
            _allocate(self._draft.fd, self._nbytes)
            self._direct = _open_direct(self._draft.temporary)

    def write(self, offset: int, window: npt.NDArray[np.uint8]) -> None:
        """See `Upload.write`."""
        self._enter(offset, window.size)
        try:
            with reported("write", self._name, self._draft.temporary):
                self._write(offset, window)
        except BaseException:
            self._leave(0)
            raise
        self._leave(window.size)

    def commit(self) -> None:
        """See `Upload.commit`. A commit that fails leaves nothing behind.

        Raises:
            ObjectExistsError: the mode is ``"create"`` and the name is taken.
            StoreError: bytes are missing, the upload is over, or the disk failed.
        """
        if not self._finish():
            raise self._over()
        try:
            if self._missing:
                raise StoreError(f"upload ends with {self._missing} of {self._nbytes} bytes missing", file=self._name)
            self._draft.publish(self._mode)
        finally:
            self._release()

    def abort(self) -> None:
        """See `Upload.abort`."""
        if self._finish():
            self._release()

    def _write(self, offset: int, window: npt.NDArray[np.uint8]) -> None:
        done = self._write_direct(offset, window)
        if done < window.size:
            write_fully(self._draft.fd, window.data[done:], offset + done)
            if window.size - done >= _SMALL:
                start_writeback(self._draft.fd, offset + done, window.size - done)

    def _write_direct(self, offset: int, window: npt.NDArray[np.uint8]) -> int:
        """Write the whole pages of ``window`` past the page cache, if that is possible; return how many bytes."""
        aligned = not offset % _PAGE and not window.ctypes.data % _PAGE
        nbytes = window.size - window.size % _PAGE
        if self._direct is None or not aligned or not nbytes:
            return 0
        try:
            write_fully(self._direct, window.data[:nbytes], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0  # the device wants a coarser alignment than a page
        return nbytes

    def _enter(self, offset: int, nbytes: int) -> None:
        with self._changed:
            if not self._is_open:
                raise self._over()
            if offset < 0 or offset + nbytes > self._nbytes:
                raise StoreError(
                    f"window [{offset}, {offset + nbytes}) does not lie in an object of {self._nbytes} bytes",
                    file=self._name,
                )
            self._writers += 1

    def _leave(self, nbytes: int) -> None:
        with self._changed:
            self._writers -= 1
            self._missing -= nbytes
            self._changed.notify_all()

    def _finish(self) -> bool:
        """Refuse further writes and wait for those under way; False if the upload was over already."""
        with self._changed:
            was_open, self._is_open = self._is_open, False
            self._changed.wait_for(lambda: not self._writers)
        return was_open

    def _release(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
        self._draft.discard()

    def _over(self) -> StoreError:
        return StoreError("the upload was committed or aborted already", file=self._name)


def write_fully(fd: int, view: memoryview, offset: int) -> None:
    """``pwrite`` all of ``view`` (the kernel may take less than it is given)."""
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Ask the kernel to begin writing these dirty pages now; a hint, it fails silently."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable. One that was pruned meanwhile is passed over: nothing is in it any more."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def prune_folders(folder: str, root: str) -> None:
    """Remove ``folder`` and those above it, below ``root``, as long as they are empty."""
    while folder != root:
        try:
            os.rmdir(folder)
        except OSError:  # not empty, or removed by another thread, which goes on upwards itself
            return
        folder = os.path.dirname(folder)


def _create(path: str, folder: str) -> int:
    """Open a new file, making its folder as often as a concurrent `delete` prunes it under our hands."""
    for _ in range(_FOLDER_RACES):
        try:
            return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileNotFoundError:
            _make_folder(folder)
    raise FileNotFoundError(errno.ENOENT, "the folder vanishes whenever it is made")


def _make_folder(folder: str) -> None:
    """Like ``os.makedirs``, and every folder that was made is durable."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folder(os.path.dirname(folder))
        _make_folder(folder)
        return
    sync_folder(os.path.dirname(folder))


def _open_direct(path: str) -> int | None:
    """Open for writing past the page cache, or None where the file system cannot."""
    if not _O_DIRECT:
        return None
    try:
        return os.open(path, os.O_WRONLY | _O_DIRECT)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise


def _allocate(fd: int, nbytes: int) -> None:
    """Reserve disk space: a full disk is noticed before any byte is written, and parallel writers run faster.

    Not ``os.posix_fallocate``, which falls back to writing a byte into every block where the file system cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate", None)
    if fallocate is None:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, 0, 0, nbytes) and ctypes.get_errno() not in _UNSUPPORTED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
