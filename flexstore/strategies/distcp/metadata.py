"""Paddle's ``Metadata``, read: which tensors there are, and which box of them lies in which file.

Layout (``paddle.distributed.flex_checkpoint.dcp.metadata``; ``paddle.distributed.checkpoint.metadata`` before 3.2):
``state_dict_metadata`` lists the shards of each key, ``storage_metadata`` says in which file each lies, and
``flat_mapping`` where the key sits in the nested dict. Pickles of older versions lack fields. Of replicas only the main
one is used.

Promises that every shard lies in its tensor, that every shard with elements has exactly one file, that no file is asked
for two shards of one key, and that file names are plain. Does not check that the shards tile the tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from flexstore.backends.base import ObjectInfo, Store
from flexstore.core.box import Box
from flexstore.core.dtypes import DType, dtype_named
from flexstore.core.manifest import TensorInfo
from flexstore.core.names import is_safe_name
from flexstore.errors import CorruptCheckpointError, FlexstoreError, UnsupportedValueError
from flexstore.strategies.distcp.machine import AllowList, Record, numbers, record_of, run
from flexstore.strategies.distcp.window import Refusal, Window

MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"
OLD_MODULE = "paddle.distributed.checkpoint.metadata"
METADATA = "Metadata"
TENSOR_METADATA = "LocalTensorMetadata"
TENSOR_INDEX = "LocalTensorIndex"

_LIMIT = 1 << 30
_SHOWN = 200
_ALLOWED: AllowList = {
    (module, kind): record_of(kind)
    for module in (MODULE, OLD_MODULE)
    for kind in (METADATA, TENSOR_METADATA, TENSOR_INDEX)
}

Range: TypeAlias = tuple[int, int] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard in a data file.

    Attributes:
        key, dtype: of the tensor.
        block: the local block, in global coordinates.
        flat: if not None, only this half-open row-major range of the block is stored, as a 1-D array.
        file: name of the data file.
    """

    key: str
    dtype: DType
    block: Box
    flat: Range
    file: str


@dataclass(frozen=True, slots=True)
class SavedState:
    """What one ``Metadata`` says."""

    tensors: tuple[TensorInfo, ...]
    shards: tuple[SavedShard, ...]


@dataclass(frozen=True, slots=True)
class _Described:
    block: Box
    flat: Range
    dtype: str
    global_shape: tuple[int, ...] | None

    @property
    def is_empty(self) -> bool:
        return self.block.is_empty or (self.flat is not None and self.flat[0] == self.flat[1])


# (key, offset, range, shape of the block if it is given) → files
_Places: TypeAlias = dict[tuple[str, tuple[int, ...], Range, tuple[int, ...] | None], list[str]]


def read_metadata(store: Store, info: ObjectInfo) -> SavedState:
    """Read one ``.metadata`` object.

    Raises:
        CorruptCheckpointError: it is broken or hostile.
        UnsupportedValueError: a tensor has a dtype that flexstore does not know.
    """
    window = Window(store, info.name, info.nbytes, ahead=store.io.read_nbytes, limit=_LIMIT)
    content = run(window, _ALLOWED)
    try:
        return _state(_record(content, METADATA))
    except Refusal as refusal:
        raise _inconsistent(refusal, file=info.name) from None
    except FlexstoreError as error:
        raise error.located(file=info.name) from None


def _inconsistent(refusal: Refusal, key: str | None = None, file: str | None = None) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"inconsistent Paddle metadata: {refusal}", key=key, file=file)


def _state(metadata: Record) -> SavedState:
    places = _places(_field(metadata, "storage_metadata", dict))
    paths = _typed(metadata.fields.get("flat_mapping") or {}, dict, "flat_mapping")
    tensors: list[TensorInfo] = []
    shards: list[SavedShard] = []
    for name, records in _field(metadata, "state_dict_metadata", dict).items():
        key = _typed(name, str, "tensor key")
        try:
            described = [_described(_record(record, TENSOR_METADATA)) for record in _typed(records, list, "shard list")]
            tensors.append(_tensor(key, described, paths))
            shards.extend(_located(tensors[-1], described, places))
        except UnsupportedValueError as error:
            raise error.located(key=key) from None
        except Refusal as refusal:
            raise _inconsistent(refusal, key=key) from None
    if places:
        raise Refusal(f"files are given for shards that no tensor has, the first of {next(iter(places))[0]!r}")
    _check_single(shards)
    return SavedState(tuple(tensors), tuple(shards))


def _places(storage: dict[object, object]) -> _Places:
    places: _Places = defaultdict(list)
    for index, file in storage.items():
        record = _record(index, TENSOR_INDEX)
        if record.fields.get("replica_id") in (None, 0):
            given = record.fields.get("local_shape")
            shape = None if given is None else numbers(given, "local_shape")
            places[_field(record, "tensor_key", str), _offset(record), _flat(record), shape].append(_file_name(file))
    return dict(places)


def _file_name(value: object) -> str:
    name = _typed(value, str, "file name")
    if "/" in name or not is_safe_name(name):
        raise Refusal(f"the data file {name[:_SHOWN]!r} does not lie in the checkpoint's own folder")
    return name


def _described(record: Record) -> _Described:
    shape = numbers(record.fields.get("local_shape"), "local_shape")
    offset, flat = _offset(record), _flat(record)
    if len(offset) != len(shape):
        raise Refusal(f"a shard of shape {shape} has the offset {offset}")
    block = Box(offset, shape)
    if flat is not None and flat[1] > block.size:
        raise Refusal(f"the flattened range {flat} does not lie in a block of shape {shape}")
    whole = record.fields.get("global_shape")
    return _Described(
        block, flat, _field(record, "dtype", str), None if whole is None else numbers(whole, "global_shape")
    )


def _offset(record: Record) -> tuple[int, ...]:
    return numbers(record.fields.get("global_offset"), "global_offset")


def _flat(record: Record) -> Range:
    given = record.fields.get("flattened_range")
    if bool(record.fields.get("is_flattened", False)) != (given is not None):
        raise Refusal("is_flattened and flattened_range contradict each other")
    if given is None:
        return None
    match numbers(given, "flattened_range"):
        case (start, stop) if start <= stop:
            return start, stop
    raise Refusal("a flattened_range is not (start, stop)")


def _tensor(key: str, shards: list[_Described], paths: dict[object, object]) -> TensorInfo:
    if len({(shard.dtype, shard.global_shape, shard.block.ndim) for shard in shards}) != 1:
        raise Refusal("there are no shards, or they disagree about the dtype or shape of the tensor")
    shape = shards[0].global_shape
    if shape is None:
        shape = tuple(max(stops) for stops in zip(*(shard.block.stop for shard in shards), strict=True))
    for shard in shards:
        if not Box.whole(shape).contains(shard.block):
            raise Refusal(f"the shard {shard.block} does not lie in the shape {shape}")
    return TensorInfo(key, dtype_named(shards[0].dtype), shape, _path(key, paths))


def _path(key: str, paths: dict[object, object]) -> tuple[str, ...] | None:
    path = _typed(paths.get(key, (key,)), tuple, "path")
    pieces = tuple(_typed(piece, str, "path piece") for piece in path)
    return None if pieces == (key,) else pieces


def _located(tensor: TensorInfo, shards: list[_Described], places: _Places) -> Iterator[SavedShard]:
    for shard in shards:
        block, flat = shard.block, shard.flat
        found = [
            file for shape in (block.shape, None) for file in places.pop((tensor.key, block.offset, flat, shape), ())
        ]
        if len(found) > 1 or (not found and not shard.is_empty):
            raise Refusal(f"the shard {block} is said to lie in {len(found)} files, not in one")
        for file in found:
            yield SavedShard(tensor.key, tensor.dtype, block, flat, file)


def _check_single(shards: list[SavedShard]) -> None:
    seen: set[tuple[str, str]] = set()
    for shard in shards:
        if (shard.key, shard.file) in seen:
            raise Refusal(f"{shard.file!r} is said to hold two shards of {shard.key!r}")
        seen.add((shard.key, shard.file))


def _record(value: object, kind: str) -> Record:
    if not isinstance(value, Record) or value.kind != kind:
        raise Refusal(f"there is no {kind} where one must be")
    return value


def _field(record: Record, name: str, kind: type[T]) -> T:
    return _typed(record.fields.get(name), kind, name)


def _typed(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise Refusal(f"a {what} is of type {type(value).__name__}, not {kind.__name__}")
    return value
