"""The disk itself: one file, two threads, no checksums, no format, memory laid out as the disk likes it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.peers.base import Peer
from benchmarks.states import Arrays

_THREADS = 2
_BLOCK = 8 << 20
_PAGE = 4096


class RawDirect(Peer):
    """O_DIRECT writes straight from page-aligned memory; reads through the page cache."""

    flags = os.O_DIRECT

    def hold(self, arrays: Arrays) -> None:
        self._nbytes = sum(a.nbytes for a in arrays.values())
        memory = mmap.mmap(-1, -(-self._nbytes // _PAGE) * _PAGE)
        self._bytes = np.frombuffer(memory, np.uint8)
        self._held: Arrays = {}
        at = 0
        for name, array in arrays.items():
            place = self._bytes[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            place[...] = array
            self._held[name] = place
            at += array.nbytes

    def arrays(self) -> Arrays:
        return self._held

    def save(self, path: Path) -> None:
        path.mkdir(parents=True)
        fd = os.open(path / "data", os.O_CREAT | os.O_WRONLY | self.flags, 0o644)
        try:
            _spread(lambda at: os.pwrite(fd, self._bytes[at : at + _BLOCK], at), self._bytes.size)
            os.ftruncate(fd, self._nbytes)
            os.fsync(fd)
        finally:
            os.close(fd)

    def load(self, path: Path) -> None:
        fd = os.open(path / "data", os.O_RDONLY)
        try:
            _spread(lambda at: os.preadv(fd, [self._bytes[at : min(at + _BLOCK, self._nbytes)]], at), self._nbytes)
        finally:
            os.close(fd)


class RawBuffered(RawDirect):
    """Writes through the page cache, then fsync."""

    flags = 0


def _spread(block: Callable[[int], object], nbytes: int) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(block, at) for at in range(0, nbytes, _BLOCK)]:
            done.result()
