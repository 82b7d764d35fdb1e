"""The metadata file that we write: Paddle's ``Metadata`` for a manifest, marked with the attempt that wrote it.

The mark is one more attribute of the object, ``flexstore_attempt``, which Paddle ignores. It comes first, at a fixed
place, so that the first bytes tell our metadata from Paddle's: an attempt of ours is a checkpoint only once its
manifest is published.
"""

from __future__ import annotations

from collections.abc import Iterator

from flexstore.backends.base import ObjectInfo, Store
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
_NOT_FLATTENED = {"is_flattened": op.FALSE, "flattened_range": op.NONE}


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
            _dict("state_dict_metadata", (described for described, _ in tensors)),
            _dict("storage_metadata", (placed for _, placed in tensors)),
            _dict("flat_mapping", (_path(tensor) for tensor in manifest.tensors)),
            op.BUILD,
            op.STOP,
        )
    )


def _dict(name: str, entries: Iterator[bytes]) -> bytes:
    return emit.text(name) + op.EMPTY_DICT + b"".join(entries) + op.SETITEM


def _tensors(manifest: Manifest) -> Iterator[tuple[bytes, bytes]]:
    """Per tensor: its entry in ``state_dict_metadata``, and its entries in ``storage_metadata``."""
    table = manifest.chunks
    offsets, shapes, files = table.offset.T.tolist(), table.shape.T.tolist(), table.file.tolist()
    names = [emit.text(file.name) for file in manifest.files]
    for number, tensor in enumerate(manifest.tensors):
        ndim, rows = len(tensor.shape), table.rows_of(number)
        boxes = [_box(offsets[row][:ndim], shapes[row][:ndim]) for row in rows]
        key = emit.text(tensor.key)
        described = b"".join(_described(tensor, box) + op.APPEND for box in boxes or [_box([0] * ndim, tensor.shape)])
        placed = (_index(key, box) + names[files[row]] + op.SETITEM for row, box in zip(rows, boxes, strict=True))
        yield key + op.EMPTY_LIST + described + op.SETITEM, b"".join(placed)


def _box(offset: list[int], shape: list[int] | tuple[int, ...]) -> dict[str, bytes]:
    return {"global_offset": emit.integers(offset), "local_shape": emit.integers(shape)} | _NOT_FLATTENED


def _described(tensor: TensorInfo, box: dict[str, bytes]) -> bytes:
    whole = {"dtype": emit.text(tensor.dtype.name), "global_shape": emit.integers(tensor.shape)}
    return _record(TENSOR_METADATA, box | whole)


def _index(key: bytes, box: dict[str, bytes]) -> bytes:
    return _record(TENSOR_INDEX, {"tensor_key": key, "replica_id": op.NONE} | box)


def _record(kind: str, fields: dict[str, bytes]) -> bytes:
    items = b"".join([_MEMO[name] + value for name, value in fields.items()])
    return _MEMO[kind] + op.EMPTY_TUPLE + op.NEWOBJ + op.EMPTY_DICT + op.MARK + items + op.SETITEMS + op.BUILD


def _path(tensor: TensorInfo) -> bytes:
    pieces = tensor.path or (tensor.key,)
    return emit.text(tensor.key) + emit.sequence([emit.text(piece) for piece in pieces]) + op.SETITEM
