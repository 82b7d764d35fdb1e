"""Writing files whose layout is known: gather, checksum and write, window by window, on a few threads.

Every file is cut into windows of the store's request size. A worker fills its page-aligned bounce buffer with what the
layout says, checksums every block whose first byte lies in its window while the bytes are hot, and hands the window to
the store. Extra memory is one window per worker, whatever the size of the state.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from flexstore.backends.base import Store, SupportsUpload, Upload
from flexstore.core.checksum import block_count, block_nbytes, crc32c
from flexstore.core.manifest import FileInfo
from flexstore.core.region import Region
from flexstore.pipeline.memory import DEFAULT_BUDGET, Bytes, ItemBytes
from flexstore.pipeline.workers import run_workers
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.planning.receipts import Written

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a rank writes.

    Attributes:
        budget_nbytes: most extra memory for windows in flight.
        progress: called with the number of bytes that became written, from any thread.
    """

    budget_nbytes: int = DEFAULT_BUDGET
    progress: Callable[[int], None] | None = None


def write_files(
    layouts: Sequence[FileLayout], regions: Mapping[int, Region], store: Store, options: WriteOptions
) -> Written:
    """Write files durably.

    Args:
        layouts: the files.
        regions: item index → region that contains the item's box.
        store: where to.
        options: see there.

    Returns:
        What was written, with checksums.

    Raises:
        StoreError: the storage failed; unfinished files are removed.
    """
    jobs = [_FileJob(layout, regions, store.io.request_nbytes) for layout in layouts]
    if jobs:
        if isinstance(store, SupportsUpload):
            _write_windows(jobs, store, store, options)
        else:
            _write_streams(jobs, store, options)
    return _written(jobs)


class _FileJob:
    """One file being written: where each segment lies, and the checksums found so far."""

    def __init__(self, layout: FileLayout, regions: Mapping[int, Region], window: int) -> None:
        self.name = layout.name
        self.window = window
        self.segments = [
            np.frombuffer(s, np.uint8) if isinstance(s, bytes) else ItemBytes(regions[s.index], s.box)
            for s in layout.segments
        ]
        sizes = [segment.nbytes for segment in self.segments]
        self.offsets: list[int] = [0, *accumulate(sizes)]
        self.nbytes = self.offsets[-1]
        self.items = [(i, s.index) for i, s in enumerate(layout.segments) if isinstance(s, WriteItem)]
        counts = [block_count(sizes[i]) for i, _ in self.items]
        self.crc_start: list[int] = [0, *accumulate(counts)]
        self.crcs = np.zeros(self.crc_start[-1], np.uint32)
        self._first_crc = {i: start for (i, _), start in zip(self.items, self.crc_start, strict=False)}
        self.frame_crc = crc32c(b"".join(s for s in layout.segments if isinstance(s, bytes)))

    @property
    def window_count(self) -> int:
        return max(1, -(-self.nbytes // self.window))

    def fill(self, number: int, bounce: Bytes) -> Bytes:
        """Put window ``number`` into the bounce buffer; returns the filled part."""
        lo = number * self.window
        hi = min(self.nbytes, lo + self.window)
        index = bisect_right(self.offsets, lo) - 1
        while index < len(self.segments) and self.offsets[index] < hi:
            begin, end = self.offsets[index], self.offsets[index + 1]
            start, stop = max(lo, begin) - begin, min(hi, end) - begin
            segment = self.segments[index]
            target = bounce[begin + start - lo : begin + stop - lo]
            if isinstance(segment, ItemBytes):
                self._fill_item(index, segment, start, stop, target)
            else:
                target[:] = segment[start:stop]
            index += 1
        return bounce[: hi - lo]

    def _fill_item(self, index: int, item: ItemBytes, start: int, stop: int, target: Bytes) -> None:
        """Copy bytes ``[start, stop)`` of an item; checksum the blocks that begin there, also past ``stop``."""
        block = block_nbytes(item.nbytes)
        first = self._first_crc[index]
        at = start
        while at < stop:
            number = at // block
            end = min(item.nbytes, (number + 1) * block)
            data = item.read(at, end)
            copied = min(end, stop)
            target[at - start : copied - start] = data[: copied - at]
            if at == number * block:
                self.crcs[first + number] = crc32c(data)
            at = copied


class _Uploads:
    """The files that are being written: begun with their first window, visible with their last."""

    def __init__(self, jobs: Sequence[_FileJob], store: SupportsUpload) -> None:
        self._store = store
        self._missing = {job.name: job.window_count for job in jobs}
        self._open: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def write(self, job: _FileJob, number: int, window: Bytes) -> None:
        """Write one window; the thread that brings the last one of a file commits it."""
        with self._lock:
            if job.name not in self._open:
                self._open[job.name] = self._store.upload(job.name, job.nbytes)
            upload = self._open[job.name]
        if window.size:
            upload.write(number * job.window, window)
        with self._lock:
            self._missing[job.name] -= 1
            is_last = not self._missing[job.name]
        if is_last:
            upload.commit()
            with self._lock:
                del self._open[job.name]

    def abort(self) -> None:
        """Forget what is not visible yet."""
        for upload in self._open.values():
            upload.abort()


def _write_windows(jobs: Sequence[_FileJob], store: Store, uploader: SupportsUpload, options: WriteOptions) -> None:
    """Windows of all files from one queue, in order."""
    uploads = _Uploads(jobs, uploader)
    window = min(store.io.request_nbytes, max(job.nbytes for job in jobs))

    def work(queue: Iterator[tuple[_FileJob, int]]) -> None:
        bounce = _buffer(window)
        for job, number in queue:
            filled = job.fill(number, bounce)
            uploads.write(job, number, filled)
            _report(options, filled.size)

    try:
        tasks = [(job, number) for job in jobs for number in range(job.window_count)]
        run_workers(tasks, work, _worker_count(store, options))
    except BaseException:
        uploads.abort()
        raise


def _write_streams(jobs: Sequence[_FileJob], store: Store, options: WriteOptions) -> None:
    """Whole files in parallel, each a stream of windows, for stores that take an object only in order."""

    def windows(job: _FileJob, bounce: Bytes) -> Iterator[Bytes]:
        for number in range(job.window_count):
            filled = job.fill(number, bounce)
            yield filled
            _report(options, filled.size)

    def work(queue: Iterator[_FileJob]) -> None:
        bounce = _buffer(store.io.request_nbytes)
        for job in queue:
            store.put(job.name, windows(job, bounce))

    run_workers(jobs, work, _worker_count(store, options))


def _buffer(nbytes: int) -> Bytes:
    """Page-aligned memory of whole pages; huge ones if they can be had, which spare the disk driver some work."""
    memory = mmap.mmap(-1, max(_PAGE, -(-nbytes // _PAGE) * _PAGE))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _worker_count(store: Store, options: WriteOptions) -> int:
    return max(1, min(store.io.write_parallelism, options.budget_nbytes // store.io.request_nbytes))


def _report(options: WriteOptions, nbytes: int) -> None:
    if options.progress:
        options.progress(nbytes)


def _written(jobs: Sequence[_FileJob]) -> Written:
    counts = [count for job in jobs for count in np.diff(job.crc_start).tolist()]
    return Written(
        files=tuple(FileInfo(job.name, job.nbytes, job.frame_crc) for job in jobs),
        item=np.array([item for job in jobs for _, item in job.items], np.int64),
        file=np.repeat(np.arange(len(jobs)), [len(job.items) for job in jobs]),
        byte_offset=np.array([job.offsets[i] for job in jobs for i, _ in job.items], np.int64),
        crcs=np.concatenate([job.crcs for job in jobs]) if jobs else np.zeros(0, np.uint32),
        crc_start=np.cumsum([0, *counts], dtype=np.int64),
    )
