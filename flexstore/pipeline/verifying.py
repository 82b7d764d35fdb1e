"""Checking every byte of a checkpoint against its manifest, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flexstore.backends.base import Store
from flexstore.core.checksum import block_nbytes, crc32c
from flexstore.core.manifest import FileInfo, Manifest
from flexstore.errors import StoreError
from flexstore.pipeline.memory import Bytes
from flexstore.pipeline.workers import run_workers


@dataclass(frozen=True, slots=True)
class Damage:
    """A half-open byte range of a file that is not what was written, and the tensor it belongs to (None: framing)."""

    file: str
    start: int
    stop: int
    key: str | None
    reason: str

    def __str__(self) -> str:
        whose = f"tensor '{self.key}'" if self.key is not None else "the file's framing"
        return f"'{self.file}' [{self.start}, {self.stop}), {whose}: {self.reason}"


def find_damage(manifest: Manifest, store: Store) -> list[Damage]:
    """Read every file of a checkpoint and compare it with the manifest's checksums.

    Returns:
        All damaged ranges, in file order; empty if every byte that has a checksum is right.
    """
    order = np.lexsort((manifest.chunks.byte_offset, manifest.chunks.file))
    bounds = np.searchsorted(manifest.chunks.file[order], np.arange(len(manifest.files) + 1)).tolist()
    found: list[list[Damage]] = [[] for _ in manifest.files]

    def work(files: Iterator[int]) -> None:
        buffer = np.empty(store.io.read_nbytes, np.uint8)
        for file in files:
            rows = order[bounds[file] : bounds[file + 1]].tolist()
            found[file] = list(_FileCheck(manifest, store, manifest.files[file], buffer).run(rows))

    run_workers(range(len(manifest.files)), work, store.io.parallelism)
    return [damage for of_file in found for damage in of_file]


class _FileCheck:
    def __init__(self, manifest: Manifest, store: Store, file: FileInfo, buffer: Bytes) -> None:
        self.manifest, self.store, self.file, self.buffer = manifest, store, file, buffer
        self.frame = 0

    def run(self, rows: list[int]) -> Iterator[Damage]:
        """Check the chunks at ``rows``, which are in file order, and the framing between them."""
        if not rows and self.file.frame_crc is None:
            return  # nothing is promised of it: it may be of the save before, if the last one died while advertising
        table = self.manifest.chunks
        try:
            size = self.store.head(self.file.name).nbytes
            if size != self.file.nbytes:
                yield Damage(self.file.name, 0, size, None, f"it has {size} bytes, not {self.file.nbytes}")
                return
            at = 0
            for row in rows:
                start = int(table.byte_offset[row])
                self._read_frame(at, start)
                yield from self._check_chunk(row, start)
                at = start + int(self.manifest.chunk_nbytes[row])
            self._read_frame(at, self.file.nbytes)
        except StoreError as error:
            yield Damage(self.file.name, 0, self.file.nbytes, None, f"cannot be read: {error.message}")
            return
        if self.file.frame_crc is not None and self.frame != self.file.frame_crc:
            yield Damage(self.file.name, 0, self.file.nbytes, None, "checksum mismatch outside of the tensors")

    def _read(self, start: int, stop: int) -> Iterator[Bytes]:
        while start < stop:
            part = self.buffer[: min(stop - start, self.buffer.size)]
            self.store.get_into(self.file.name, start, [part])
            yield part
            start += part.size

    def _read_frame(self, start: int, stop: int) -> None:
        if self.file.frame_crc is not None:
            for part in self._read(start, stop):
                self.frame = crc32c(part, self.frame)

    def _check_chunk(self, row: int, start: int) -> Iterator[Damage]:
        table = self.manifest.chunks
        crcs = table.crcs[table.crc_start[row] : table.crc_start[row + 1]]
        total = int(self.manifest.chunk_nbytes[row])
        step = block_nbytes(total)
        for number, crc in enumerate(crcs.tolist()):
            lo, hi = number * step, min(total, (number + 1) * step)
            got = 0
            for part in self._read(start + lo, start + hi):
                got = crc32c(part, got)
            if got != crc:
                key = self.manifest.tensors[int(table.tensor[row])].key
                yield Damage(self.file.name, start + lo, start + hi, key, "checksum mismatch")
