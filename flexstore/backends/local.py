"""`LocalStore`: objects are files under a folder of a POSIX file system.

Promises: every `put` and `upload` is atomic, create-only where asked (hard link), and durable on return; no name and,
unless ``follow_symlinks`` is given, no symbolic link leads out of the root (X9). Works on any file system; O_DIRECT
and space reservation are used where they exist (see `flexstore.backends.drafts`).

Does not: keep file descriptors open between calls (opening costs microseconds), map files into memory (a network disk
that fails would kill the process by SIGBUS), remove temporary files of dead processes by itself (see
`LocalStore.sweep`), nor hold ``a`` and ``a/b`` at once as an object store can.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt

from flexstore.backends.base import Buffer, Capabilities, IoModel, ObjectInfo, PutMode, check_name
from flexstore.backends.drafts import Draft, LocalUpload, is_temporary, prune_folders, reported, sync_folder
from flexstore.errors import ObjectNotFoundError, StoreError

_IOV_MAX = 1024
_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStore:
    """A `Store` and `SupportsUpload` over a folder.

    Args:
        root: the folder; made by the first write.
        follow_symlinks: let links inside the root lead out of it. Only for folders whose origin you trust, such as a
            Hugging Face cache, whose snapshots are made of links.
    """

    capabilities = Capabilities()
    io = IoModel()

    def __init__(self, root: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)
        self._real = os.path.join(os.path.realpath(self.root), "")
        self._follow_symlinks = follow_symlinks
        self._is_open = True

    @classmethod
    def from_url(cls, url: str, *, follow_symlinks: bool = False) -> Self:
        """Open a path or a ``file://`` URL (RFC 8089: percent-encoded, no host but ``localhost``).

        Raises:
            StoreError: the URL names another host.
        """
        if url[:7].lower() != "file://":
            return cls(url, follow_symlinks=follow_symlinks)
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise StoreError(f"{url} names the host {parts.netloc!r}", hint="write file:///absolute/path, or a path")
        return cls(url2pathname(parts.path), follow_symlinks=follow_symlinks)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Store.get`."""
        with self._opened(name) as (fd, nbytes):
            stop = nbytes if stop is None else stop
            _check_range(name, start, stop, nbytes)
            return _read(fd, name, start, stop)

    def get_into(self, name: str, start: int, buffers: Sequence[npt.NDArray[np.uint8]]) -> None:
        """See `Store.get_into`."""
        with self._opened(name) as (fd, nbytes):
            _check_range(name, start, start + sum(buffer.size for buffer in buffers), nbytes)
            _fill(fd, name, start, buffers)

    def put(self, name: str, parts: Iterable[Buffer], mode: PutMode = "overwrite") -> None:
        """See `Store.put`."""
        with self._draft(name) as draft:
            for part in parts:
                draft.append(part)
            draft.publish(mode)

    def upload(self, name: str, nbytes: int, mode: PutMode = "overwrite") -> LocalUpload:
        """See `SupportsUpload.upload`. A full disk is reported here, before any byte is written."""
        return LocalUpload(self._draft(name), name, nbytes, mode)

    def head(self, name: str) -> ObjectInfo:
        """See `Store.head`."""
        path = self._path(name)
        with reported("look at", name, path):
            try:
                status = os.stat(path)
            except _NO_SUCH_FILE:
                raise self._not_found(name) from None
        return self._info(name, status)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list`. Files that are no objects are left out: links that lead out, unsafe names, drafts."""
        self._check_open()
        infos = (self._listed(name, entry) for name, entry in self._files("", prefix))
        return iter(sorted((info for info in infos if info is not None), key=lambda info: info.name))

    def delete(self, name: str) -> None:
        """See `Store.delete`. Durable on return; folders that become empty go, too."""
        path = self._path(name)
        with reported("delete", name, path):
            try:
                os.unlink(path)
            except _NO_SUCH_FILE:
                return
            sync_folder(os.path.dirname(path))
            prune_folders(os.path.dirname(path), self.url)

    def sweep(self, before: float) -> int:
        """Remove the temporary files of writers that died.

        Args:
            before: POSIX seconds; drafts last written earlier are taken for dead. Give the slowest save its time.

        Returns:
            How many were removed.
        """
        self._check_open()
        return sum(_swept(name, entry, before) for name, entry in self._files("", "") if is_temporary(entry.name))

    def close(self) -> None:
        """See `Store.close`."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"the store {self.url} is closed")

    def _path(self, name: str) -> str:
        self._check_open()
        path = os.path.join(self.root, check_name(name))
        if is_temporary(os.path.basename(path)):
            raise StoreError("the name is reserved for unfinished files", file=name)
        if self._leaves(path):
            raise StoreError(
                f"a symbolic link leads out of {self.url}",
                file=name,
                hint="if you trust this folder, pass storage_options={'follow_symlinks': True}",
            )
        return path

    def _draft(self, name: str) -> Draft:
        return Draft(name, self._path(name), self.url)

    def _leaves(self, path: str) -> bool:
        return not self._follow_symlinks and not os.path.join(os.path.realpath(path), "").startswith(self._real)

    def _leads_to_something(self, link: str) -> bool:
        return os.path.exists(link) and not self._leaves(link)

    def _not_found(self, name: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"no such object in {self.url}", file=name)

    def _info(self, name: str, status: os.stat_result) -> ObjectInfo:
        if not stat.S_ISREG(status.st_mode):
            raise self._not_found(name)
        return ObjectInfo(name, status.st_size, status.st_mtime)

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, int]]:
        """Open an object for reading: its file descriptor and size."""
        path = self._path(name)
        with reported("read", name, path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a hostile FIFO would block the open for ever
            except _NO_SUCH_FILE:
                raise self._not_found(name) from None
            try:
                yield fd, self._info(name, os.fstat(fd)).nbytes
            finally:
                os.close(fd)

    def _files(self, folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Every entry under ``folder`` (empty, or with a closing ``/``) that is no folder and begins with ``prefix``.

        Linked folders are not entered: they may form a loop.
        """
        path = os.path.join(self.root, folder)
        with reported("list", folder, path):
            try:
                with os.scandir(path) as entries:
                    found = [(folder + entry.name, entry) for entry in entries]
            except FileNotFoundError:
                return
        for name, entry in found:
            if entry.is_dir(follow_symlinks=False):
                if f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/"):
                    yield from self._files(f"{name}/", prefix)
            elif name.startswith(prefix):
                yield name, entry

    def _listed(self, name: str, entry: os.DirEntry[str]) -> ObjectInfo | None:
        if is_temporary(entry.name) or (entry.is_symlink() and not self._leads_to_something(entry.path)):
            return None
        with reported("list", name, entry.path):
            try:
                return self._info(check_name(name), entry.stat())
            except (FileNotFoundError, StoreError):  # deleted a moment ago, a FIFO, an unsafe name
                return None


def _swept(name: str, entry: os.DirEntry[str], before: float) -> bool:
    with reported("sweep", name, entry.path):
        try:
            if entry.stat(follow_symlinks=False).st_mtime >= before:
                return False
            os.unlink(entry.path)
        except FileNotFoundError:  # its writer lives, and has just finished
            return False
    return True


def _check_range(name: str, start: int, stop: int, nbytes: int) -> None:
    if not 0 <= start <= stop <= nbytes:
        raise StoreError(f"range [{start}, {stop}) does not lie in an object of {nbytes} bytes", file=name)


def _read(fd: int, name: str, start: int, stop: int) -> bytes:
    pieces = []
    while start < stop:
        piece = os.pread(fd, stop - start, start)
        if not piece:
            raise _cut_short(name, start)
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fill(fd: int, name: str, start: int, buffers: Sequence[npt.NDArray[np.uint8]]) -> None:
    empty = [buffer.data for buffer in reversed(buffers) if buffer.size]  # the next one to fill is the last
    while empty:
        got = os.preadv(fd, list(islice(reversed(empty), _IOV_MAX)), start)
        if not got:
            raise _cut_short(name, start)
        start += got
        while empty and got >= empty[-1].nbytes:
            got -= empty.pop().nbytes
        if got:
            empty[-1] = empty[-1][got:]


def _cut_short(name: str, at: int) -> StoreError:
    return StoreError(f"the object ended at byte {at} while it was being read", file=name)
