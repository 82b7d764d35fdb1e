"""Writing files whose layout is known: gather, checksum and write, window by window, on a few threads.

Every file is cut into windows of the store's request size. A worker fills its page-aligned bounce buffer with what the
layout says, checksums every block whose first byte lies in its window while the bytes are hot, and hands the window to
the store. Extra memory is one window per worker, whatever the size of the state.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flexstore.backends.base import Store, SupportsUpload, Upload
from flexstore.core.checksum import block_count, block_nbytes, crc32c
from flexstore.core.manifest import FileInfo, Ints
from flexstore.core.region import Region
from flexstore.pipeline.memory import Bytes, ItemBytes
from flexstore.pipeline.workers import run_workers
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.planning.receipts import Written

_PAGE = 4096
_COMMITS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a rank writes.

    Attributes:
        budget_nbytes: most extra memory for windows in flight.
        progress: called with the number of bytes that became written, from any thread.
    """

    budget_nbytes: int = 256 << 20
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
        sizes = np.fromiter((s.nbytes for s in self.segments), np.int64, len(self.segments))
        self.offsets: Ints = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.nbytes = int(self.offsets[-1])
        self.items = [(i, s) for i, s in enumerate(layout.segments) if isinstance(s, WriteItem)]
        self.crcs = {i: np.zeros(block_count(item.nbytes), np.uint32) for i, item in self.items}
        self.frame_crc = crc32c(b"".join(s for s in layout.segments if isinstance(s, bytes)))

    @property
    def window_count(self) -> int:
        return max(1, -(-self.nbytes // self.window))

    def fill(self, number: int, bounce: Bytes) -> Bytes:
        """Put window ``number`` into the bounce buffer; returns the filled part."""
        lo = number * self.window
        hi = min(self.nbytes, lo + self.window)
        index = int(np.searchsorted(self.offsets, lo, side="right")) - 1
        while index < len(self.segments) and self.offsets[index] < hi:
            begin = int(self.offsets[index])
            start, stop = max(lo, begin) - begin, min(hi, int(self.offsets[index + 1])) - begin
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
        crcs = self.crcs[index]
        at = start
        while at < stop:
            number = at // block
            end = min(item.nbytes, (number + 1) * block)
            data = item.read(at, end)
            copied = min(end, stop)
            target[at - start : copied - start] = data[: copied - at]
            if at == number * block:
                crcs[number] = crc32c(data)
            at = copied


def _write_windows(
    jobs: Sequence[_FileJob], store: Store, uploader: SupportsUpload, options: WriteOptions
) -> None:
    """Windows of all files from one queue, in order; a file becomes visible once all of its windows are written."""
    uploads: list[Upload] = []
    try:
        for job in jobs:
            uploads.append(uploader.upload(job.name, job.nbytes))
        tasks = [(job, upload, n) for job, upload in zip(jobs, uploads, strict=True) for n in range(job.window_count)]
        window = min(store.io.request_nbytes, max(job.nbytes for job in jobs))

        def work(queue: Iterator[tuple[_FileJob, Upload, int]]) -> None:
            bounce = _buffer(window)
            for job, upload, number in queue:
                filled = job.fill(number, bounce)
                if filled.size:
                    upload.write(number * job.window, filled)
                _report(options, filled.size)

        run_workers(tasks, work, _worker_count(store, options))
        run_workers(uploads, _commit, _COMMITS_AT_ONCE)
    except BaseException:
        for upload in uploads:
            upload.abort()
        raise


def _commit(uploads: Iterator[Upload]) -> None:
    for upload in uploads:
        upload.commit()


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
    """Page-aligned, zeroed memory of whole pages."""
    return np.frombuffer(mmap.mmap(-1, max(_PAGE, -(-nbytes // _PAGE) * _PAGE)), np.uint8)


def _worker_count(store: Store, options: WriteOptions) -> int:
    return max(1, min(store.io.parallelism, options.budget_nbytes // store.io.request_nbytes))


def _report(options: WriteOptions, nbytes: int) -> None:
    if options.progress:
        options.progress(nbytes)


def _written(jobs: Sequence[_FileJob]) -> Written:
    rows = [(number, job, index, item) for number, job in enumerate(jobs) for index, item in job.items]
    crcs = [job.crcs[index] for _, job, index, _ in rows]
    return Written(
        files=tuple(FileInfo(job.name, job.nbytes, job.frame_crc) for job in jobs),
        item=np.fromiter((item.index for *_, item in rows), np.int64, len(rows)),
        file=np.fromiter((number for number, *_ in rows), np.int64, len(rows)),
        byte_offset=np.fromiter((job.offsets[index] for _, job, index, _ in rows), np.int64, len(rows)),
        crcs=np.concatenate(crcs) if crcs else np.zeros(0, np.uint32),
        crc_start=np.cumsum([0, *(len(c) for c in crcs)], dtype=np.int64),
    )
