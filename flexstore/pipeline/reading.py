"""Reading a plan: byte ranges straight into the wanted memory where possible, every checksum block verified.

Requests of a bounded size are shared by a few threads. A request fills several places with one call: the wanted
memory itself, and scratch memory for the gaps between ranges, for what completes a checksum block, and for parts that
must be scattered (column slices, casts, device memory). Extra memory is bounded by requests in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flexstore.backends.base import Store
from flexstore.core.box import Box
from flexstore.core.checksum import block_crcs, crc32c
from flexstore.core.manifest import Manifest
from flexstore.core.region import Region
from flexstore.errors import CorruptCheckpointError, ObjectNotFoundError, StoreError
from flexstore.pipeline.memory import DEFAULT_BUDGET, Bytes, host_bytes
from flexstore.pipeline.workers import run_workers
from flexstore.planning.load import LoadPlan
from flexstore.planning.spans import Span, batches_of, scattered, spans_of

_SPANS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a rank reads.

    Attributes:
        verify: check every block that has a checksum.
        budget_nbytes: most extra memory for requests in flight.
        progress: called with the number of bytes that were read, from any thread.
    """

    verify: bool = True
    budget_nbytes: int = DEFAULT_BUDGET
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class ReadStats:
    """What a read cost: bytes from storage (rounding and gaps included) and the number of requests."""

    nbytes: int = 0
    requests: int = 0


def read_plan(plan: LoadPlan, regions: Sequence[Region], store: Store, options: ReadOptions) -> ReadStats:
    """Fill the regions of a plan.

    Args:
        plan: made for ``regions``.
        regions: the wanted memory. A region whose dtype differs from the stored one gets converted values.
        store: where the files are.
        options: see there.

    Raises:
        CorruptCheckpointError: a block's checksum differs, or a file is missing or too short.
        StoreError: the storage failed.
    """
    reader = _Reader(plan, regions, store, options)
    requests = reader.requests()
    run_workers(requests, reader.work, max(1, min(store.io.parallelism, options.budget_nbytes // store.io.read_nbytes)))
    return ReadStats(sum(r.nbytes for r in requests), len(requests))


@dataclass(frozen=True, slots=True)
class _Request:
    """One contiguous range of one file, and the spans in it."""

    file: str
    start: int
    stop: int
    spans: list[Span]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class _Reader:
    def __init__(self, plan: LoadPlan, regions: Sequence[Region], store: Store, options: ReadOptions) -> None:
        self.plan, self.regions, self.store, self.options = plan, regions, store, options
        manifest: Manifest = plan.manifest
        self.memory = [self._memory(region) for region in regions]
        self.position: list[int] = manifest.chunks.byte_offset.tolist()
        self.crcs = manifest.chunks.crcs
        self.crc_start: list[int] = manifest.chunks.crc_start.tolist()
        self.chunk_nbytes: list[int] = manifest.chunk_nbytes.tolist()

    def _memory(self, region: Region) -> Bytes | None:
        """The region's own bytes if stored bytes may land there."""
        manifest = self.plan.manifest
        if manifest.tensors[manifest.index[region.key]].dtype != region.dtype:
            return None
        data = host_bytes(region)
        return data if data is not None and data.flags.writeable else None

    def requests(self) -> list[_Request]:
        spans = spans_of(
            self.plan,
            [memory is not None for memory in self.memory],
            gap_nbytes=self.store.io.gap_nbytes,
            limit_nbytes=self.store.io.read_nbytes,
            verify=self.options.verify,
        )
        file_of: list[int] = self.plan.manifest.chunks.file.tolist()
        by_file: dict[int, list[Span]] = {}
        for span in spans:
            by_file.setdefault(file_of[span.row], []).append(span)
        return [
            self._request(file, batch)
            for file in sorted(by_file)
            for batch in batches_of(
                by_file[file],
                self.position,
                gap_nbytes=self.store.io.gap_nbytes,
                limit_nbytes=self.store.io.read_nbytes,
                count=_SPANS_AT_ONCE,
            )
        ]

    def _request(self, file: int, spans: list[Span]) -> _Request:
        last = spans[-1]
        start = self.position[spans[0].row] + spans[0].start - spans[0].lead
        stop = self.position[last.row] + last.stop + last.tail
        return _Request(self.plan.manifest.files[file].name, start, stop, spans)

    def work(self, requests: Iterator[_Request]) -> None:
        """Consume requests; runs on every worker."""
        scratch = _Scratch()
        for request in requests:
            self._read(request, scratch)
            if self.options.progress:
                self.options.progress(request.nbytes)

    def _read(self, request: _Request, scratch: _Scratch) -> None:
        scratch.reset()
        buffers: list[Bytes] = []
        filled: list[list[Bytes]] = []
        at = request.start
        for span in request.spans:
            begin = self.position[span.row] + span.start - span.lead
            if begin > at:
                buffers.append(scratch.gap(begin - at))
            pieces = self._pieces(span, scratch)
            filled.append(pieces)
            buffers += pieces
            at = begin + span.nbytes
        self._fetch(request, buffers)
        for span, pieces in zip(request.spans, filled, strict=True):
            if span.block:
                self._verify(span, pieces)
            if span.part is not None:
                self._scatter(span, span.part, pieces)

    def _pieces(self, span: Span, scratch: _Scratch) -> list[Bytes]:
        """Where the bytes of a span go: in place with scratch around it, or all into scratch."""
        memory = self.memory[span.region] if span.target >= 0 else None
        size = span.stop - span.start
        middle = scratch.take(size) if memory is None else memory[span.target : span.target + size]
        if not span.lead and not span.tail:
            return [middle]
        return [scratch.take(span.lead), middle, scratch.take(span.tail)]

    def _fetch(self, request: _Request, buffers: list[Bytes]) -> None:
        try:
            self.store.get_into(request.file, request.start, buffers)
        except ObjectNotFoundError as error:
            raise CorruptCheckpointError(
                f"the data file '{request.file}' is missing", file=request.file, key=self._key(request.spans[0])
            ) from error
        except StoreError as error:
            raise error.located(file=request.file, key=self._key(request.spans[0])) from None

    def _key(self, span: Span) -> str:
        return self.regions[span.region].key

    def _verify(self, span: Span, pieces: Sequence[Bytes]) -> None:
        number = (span.start - span.lead) // span.block
        at = self.crc_start[span.row]
        for crc in block_crcs(pieces[0], span.block) if len(pieces) == 1 else _crcs(pieces, span.block):
            if crc != self.crcs[at + number]:
                raise self._corrupt(span, number * span.block, span.block)
            number += 1

    def _corrupt(self, span: Span, start: int, step: int) -> CorruptCheckpointError:
        table, manifest = self.plan.manifest.chunks, self.plan.manifest
        file = manifest.files[int(table.file[span.row])].name
        at = self.position[span.row] + start
        stop = min(at + step, self.position[span.row] + self.chunk_nbytes[span.row])
        key = self._key(span)
        return CorruptCheckpointError(
            f"checksum mismatch in '{file}', bytes [{at}, {stop}), of tensor '{key}'",
            key=key,
            box=table.box(span.row, len(manifest.tensors[int(table.tensor[span.row])].shape)),
            file=file,
            hint="the file was damaged after it was saved; use another checkpoint",
        )

    def _scatter(self, span: Span, part: Box, pieces: Sequence[Bytes]) -> None:
        region = self.regions[span.region]
        data = pieces[0] if len(pieces) == 1 else pieces[1]
        for box, values in scattered(self.plan, span, part, data):
            region.store(box, values.astype(region.dtype.numpy, copy=False))


def _crcs(pieces: Sequence[Bytes], step: int) -> Iterator[int]:
    """CRC-32C of every ``step`` bytes of the concatenation of ``pieces``."""
    crc = room = 0
    for piece in pieces:
        start = 0
        while start < piece.size:
            if not room:
                crc, room = 0, step
            part = piece[start : start + room]
            crc = crc32c(part, crc)
            start += part.size
            room -= part.size
            if not room:
                yield crc
    if room:
        yield crc


class _Scratch:
    """Memory of one worker, reused from request to request; grows to the largest request."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._gap = np.empty(0, np.uint8)
        self._used = 0
        self._spilled = 0

    def reset(self) -> None:
        """Give all memory back for reuse."""
        if self._spilled:
            self._buffer = np.empty(self._used + self._spilled, np.uint8)
        self._used = self._spilled = 0

    def take(self, nbytes: int) -> Bytes:
        """Uninitialised memory, valid until `reset`."""
        if self._used + nbytes > self._buffer.size:
            self._spilled += nbytes
            return np.empty(nbytes, np.uint8)
        taken = self._buffer[self._used : self._used + nbytes]
        self._used += nbytes
        return taken

    def gap(self, nbytes: int) -> Bytes:
        """Memory for bytes that nobody wants; all gaps share it."""
        if nbytes > self._gap.size:
            self._gap = np.empty(nbytes, np.uint8)
        return self._gap[:nbytes]
