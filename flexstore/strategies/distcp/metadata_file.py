"""The metadata file that we write: Paddle's ``Metadata`` for a manifest, marked with the attempt that wrote it.

The mark is one more attribute of the object, ``flexstore_attempt``, which Paddle ignores. It comes first, at a fixed
place, so that the first bytes tell our metadata from Paddle's: an attempt of ours is a checkpoint only once its
manifest is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flexstore.backends.base import ObjectInfo, Store
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import Manifest, TensorInfo
from flexstore.strategies.distcp import emit
from flexstore.strategies.distcp import opcodes as op
from flexstore.strategies.distcp.metadata import METADATA, MODULE, TENSOR_INDEX, TENSOR_METADATA

_NAMES = (
    "tensor_key",
    "global_offset",
    "local_shape",
    "dtype",
    "global_shape",
    "is_flattened",
    "flattened_range",
    "replica_id",
)
_CLASSES = (TENSOR_METADATA, TENSOR_INDEX)
_MEMO = {what: emit.recalled(number) for number, what in enumerate((*_CLASSES, *_NAMES))}
_MARKED = (
    emit.HEAD
    + emit.remembered([emit.name(MODULE, kind) for kind in _CLASSES] + [emit.text(name) for name in _NAMES])
    + emit.name(MODULE, METADATA)
    + op.EMPTY_TUPLE
    + op.NEWOBJ
    + op.EMPTY_DICT
    + emit.text("flexstore_attempt")
)
_RECORD_START = op.EMPTY_TUPLE + op.NEWOBJ + op.EMPTY_DICT + op.MARK
_RECORD_END = op.SETITEMS + op.BUILD
_METADATA_START = _MEMO[TENSOR_METADATA] + _RECORD_START
_INDEX_START = _MEMO[TENSOR_INDEX] + _RECORD_START + _MEMO["replica_id"] + op.NONE + _MEMO["tensor_key"]
_GLOBAL_OFFSET, _LOCAL_SHAPE = _MEMO["global_offset"], _MEMO["local_shape"]
_DTYPES = {name: _MEMO["dtype"] + emit.text(name) for name in DTYPES}
_NOT_FLATTENED = _MEMO["is_flattened"] + op.FALSE + _MEMO["flattened_range"] + op.NONE


def is_ours(store: Store, info: ObjectInfo) -> bool:
    """True if a ``.metadata`` object was written by flexstore."""
    return info.nbytes >= len(_MARKED) and store.get(info.name, 0, len(_MARKED)) == _MARKED


def metadata_bytes(manifest: Manifest) -> bytes:
    """The whole file. A tensor without elements is described, but lies in no file."""
    tensors = list(_tensors(manifest))
    return b"".join(
        (
            _MARKED,
            emit.text(manifest.attempt),
            op.SETITEM,
            _dict("state_dict_metadata", (described for described, _, _ in tensors)),
            _dict("storage_metadata", (placed for _, placed, _ in tensors)),
            _dict("flat_mapping", (path for _, _, path in tensors)),
            op.BUILD,
            op.STOP,
        )
    )


def _dict(name: str, entries: Iterator[bytes]) -> bytes:
    return emit.text(name) + op.EMPTY_DICT + b"".join(entries) + op.SETITEM


def _tensors(manifest: Manifest) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Per tensor: its entry in ``state_dict_metadata``, those in ``storage_metadata``, and that in ``flat_mapping``."""
    table = manifest.chunks
    offsets, shapes, files = table.offset.T.tolist(), table.shape.T.tolist(), table.file.tolist()
    names = [emit.text(file.name) + op.SETITEM for file in manifest.files]
    first = np.searchsorted(table.tensor, np.arange(len(manifest.tensors) + 1)).tolist()
    for number, tensor in enumerate(manifest.tensors):
        ndim, rows = len(tensor.shape), range(first[number], first[number + 1])
        boxes = [_box(offsets[row][:ndim], shapes[row][:ndim]) for row in rows]
        key, end = emit.text(tensor.key), _global(tensor) + _RECORD_END
        described = [_METADATA_START + box + end + op.APPEND for box in boxes or [_box([0] * ndim, tensor.shape)]]
        start = _INDEX_START + key
        placed = [start + box + _RECORD_END + names[files[row]] for row, box in zip(rows, boxes, strict=True)]
        path = emit.sequence([key] if tensor.path is None else [emit.text(piece) for piece in tensor.path])
        yield key + op.EMPTY_LIST + b"".join(described) + op.SETITEM, b"".join(placed), key + path + op.SETITEM


def _box(offset: Sequence[int], shape: Sequence[int]) -> bytes:
    """The fields that both records of a box have."""
    return _GLOBAL_OFFSET + emit.integers(offset) + _LOCAL_SHAPE + emit.integers(shape) + _NOT_FLATTENED


def _global(tensor: TensorInfo) -> bytes:
    """The fields that all boxes of a tensor share."""
    return _DTYPES[tensor.dtype.name] + _MEMO["global_shape"] + emit.integers(tensor.shape)
