"""File layouts: what every byte of a data file will be, known before any byte is written.

A format is, for writing, a pure function from a rank's `WriteItem`s to `FileLayout`s; the pipeline does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flexstore.core.box import Box
from flexstore.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class WriteItem:
    """One box that this rank writes.

    Attributes:
        index: position of the item in the global save plan.
        key: name of the global tensor.
        dtype: its element type.
        box: the box, in global coordinates; never empty.
        global_shape: shape of the whole tensor.
    """

    index: int
    key: str
    dtype: DType
    box: Box
    global_shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.box.size * self.dtype.itemsize

    @property
    def is_whole(self) -> bool:
        return self.box.shape == self.global_shape


@dataclass(frozen=True, slots=True)
class FileLayout:
    """One file: literal bytes and payloads, one after the other, without gaps.

    Attributes:
        name: object name in the store.
        segments: ``bytes`` (headers, padding) or a `WriteItem`, whose row-major bytes go there.
    """

    name: str
    segments: tuple[bytes | WriteItem, ...]

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(segment) for segment in self.segments)

    def placed(self) -> Iterator[tuple[int, bytes | WriteItem]]:
        """Every segment with its byte offset in the file."""
        offset = 0
        for segment in self.segments:
            yield offset, segment
            offset += _nbytes(segment)


def _nbytes(segment: bytes | WriteItem) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.nbytes
