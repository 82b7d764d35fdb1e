"""The data files that we write: a pickled dict, key → numpy array, whose bytes are known before they are written.

Payloads are aligned to 64 bytes. Types that numpy does not know are stored as integers of their width, as Paddle does.
A key can occur once per file, so a rank that writes several boxes of one tensor writes several files; boxes are stored
as boxes, never as flattened ranges. Numpy is named by ``numpy.core.multiarray``, which numpy 1 and 2 resolve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from flexstore.core.dtypes import DType
from flexstore.planning.files import FileLayout, WriteItem
from flexstore.strategies.distcp import emit
from flexstore.strategies.distcp import opcodes as op
from flexstore.strategies.distcp.chunks import carrier_of
from flexstore.strategies.distcp.payloads import NAME_TABLE

ALIGNMENT = 64

_RECONSTRUCT, _NDARRAY, _DTYPE = map(emit.recalled, range(3))
_START = (
    emit.HEAD
    + emit.remembered(
        [emit.name("numpy.core.multiarray", "_reconstruct"), emit.name("numpy", "ndarray"), emit.name("numpy", "dtype")]
    )
    + op.EMPTY_DICT
)
_EMPTY_ARRAY = _RECONSTRUCT + emit.sequence([_NDARRAY, emit.integers([0]), emit.payload_head(1) + b"b"]) + op.REDUCE
_VERSION = op.MARK + emit.integer(1)
_ARRAY_END = op.TUPLE + op.BUILD + op.SETITEM
_MINUS_ONE = op.BININT + b"\xff" * 4


def layout(items: Sequence[WriteItem], rank: int, world_size: int, attempt: str) -> list[FileLayout]:
    """The files of one rank. Pure.

    Args:
        items: what it writes, none empty.
        rank, world_size: of the writer; they keep the names of all ranks apart.
        attempt: decimal digits.

    Returns:
        Files named ``<number>_<attempt>.distcp``, as Paddle expects; the j-th box of a key lies in the j-th file.
    """
    files: list[list[WriteItem]] = []
    seen: Counter[str] = Counter()
    for item in items:
        if seen[item.key] == len(files):
            files.append([])
        files[seen[item.key]].append(item)
        seen[item.key] += 1
    return [
        FileLayout(f"{rank + number * world_size}_{attempt}.distcp", tuple(_segments(content)))
        for number, content in enumerate(files)
    ]


def _segments(items: Sequence[WriteItem]) -> Iterator[bytes | WriteItem]:
    keys = [emit.text(item.key) for item in items]
    position = 0
    before = _START
    for item, key in zip(items, keys, strict=True):
        before += key + _EMPTY_ARRAY + _VERSION + emit.integers(item.box.shape) + _element_type(item.dtype) + op.FALSE
        head = emit.payload_head(item.nbytes)
        before += emit.padding(position + len(before), len(head), ALIGNMENT) + head
        yield before
        yield item
        position += len(before) + item.nbytes
        before = _ARRAY_END
    # Paddle's table from keys to parameter names, which are the same here.
    pairs = b"".join(key + key + op.SETITEM for key in keys)
    yield before + emit.text(NAME_TABLE) + op.EMPTY_DICT + pairs + op.SETITEM + op.STOP


@cache
def _element_type(dtype: DType) -> bytes:
    numpy_type = carrier_of(dtype).numpy.str
    return (
        _DTYPE
        + emit.sequence([emit.text(numpy_type[1:]), op.FALSE, op.TRUE])
        + op.REDUCE
        + emit.sequence([emit.integer(3), emit.text(numpy_type[0]), *[op.NONE] * 3, *[_MINUS_ONE] * 2, emit.integer(0)])
        + op.BUILD
    )
