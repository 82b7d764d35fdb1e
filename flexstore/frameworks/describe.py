"""From a caller's state to what the planner and the pipeline need: names, boxes, memory. No copies, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flexstore.core.manifest import TensorInfo
from flexstore.core.plain import Plain
from flexstore.core.region import LocalArray, Region, regions_of
from flexstore.core.state import Leaf, Path, flatten
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import FlexstoreError, InvalidStateError, KeyCollisionError, UnsupportedValueError
from flexstore.frameworks.lookup import framework_of, is_tensor
from flexstore.frameworks.shards import as_shard, is_shard


@dataclass(frozen=True, slots=True)
class Description:
    """What this rank's state holds.

    Attributes:
        infos: the global tensors, one per key, in the order of the state; also those held as empty slices only.
        regions: the non-empty boxes in this rank's memory.
        shards: the shards that the regions are made of; a plain tensor is a whole one.
        common: dotted path → plain value.
        common_paths: dotted path → path pieces, for those that are not just ``(path,)``.
    """

    infos: list[TensorInfo]
    regions: list[Region]
    shards: list[ShardedTensor]
    common: Mapping[str, Plain]
    common_paths: Mapping[str, Path]


def describe(state: Any, *, writable: bool = False) -> Description:
    """Name everything in a nested state and find its memory.

    A tensor is named by its dotted path, a shard by its ``key``. Shards of one key may sit in a list or anywhere in the
    state; the same tensor object at the same place of the same key is taken once.

    Args:
        state: nested dicts, lists and tuples of tensors, shards, lists of shards and plain values.
        writable: the tensors will be loaded into.

    Raises:
        KeyCollisionError: two different values under one name (D16).
        UnsupportedValueError: a leaf that is neither a tensor nor a plain value, or a tensor of a kind or element type
            that cannot be stored (R4).
        InvalidStateError: a shard that contradicts its tensor, or another shard of its key, in shape, dtype or declared
            axis (R2, R6); a tensor without memory (Z6); a name that is not valid Unicode; read-only memory if
            ``writable``.
    """
    flat = flatten(state, _is_leaf)
    found = _Found()
    for name, leaf in flat.tensors.items():
        for value in leaf.value if isinstance(leaf.value, list | tuple) else (leaf.value,):
            try:
                found.take(name, leaf.path, value, writable)
            except FlexstoreError as error:
                raise error.located(key=name) from error.__cause__
    for name in flat.plain:
        _check_unicode(name)
    _refuse_shared_names(found, flat.plain)
    return Description(
        infos=list(found.infos.values()),
        regions=found.regions,
        shards=found.shards,
        common={name: leaf.value for name, leaf in flat.plain.items()},
        common_paths={name: leaf.path for name, leaf in flat.plain.items() if leaf.path != (name,)},
    )


def _is_leaf(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(is_shard(item) and item.key == value[0].key for item in value)
    return is_tensor(value)


def _refuse_shared_names(found: _Found, plain: Mapping[str, Leaf]) -> None:
    for name in found.infos.keys() & plain.keys():
        raise _collision(name, found.paths[name], plain[name].path)


def _collision(key: str, one: Path, other: Path) -> KeyCollisionError:
    return KeyCollisionError(
        f"two different values, at {'/'.join(one)} and {'/'.join(other)}, would be stored under one name",
        key=key,
        hint="rename one of the two, or give the shards their own boxes",
    )


@dataclass(slots=True)
class _Found:
    """The tensors met so far. ``paths`` tells where each key was met first, ``places`` who holds which block."""

    infos: dict[str, TensorInfo] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    shards: list[ShardedTensor] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)
    places: dict[tuple[object, ...], tuple[Any, Path]] = field(default_factory=dict)

    def take(self, name: str, path: Path, value: Any, writable: bool) -> None:
        framework = framework_of(value)
        if framework is None:
            raise UnsupportedValueError(f"the shard's local_tensor is a {type(value.local_tensor).__name__}")
        shard = framework.shard(name, value) if framework.is_tensor(value) else as_shard(value)
        if shard is None:
            return
        array = framework.local_array(shard.local_tensor)
        _check_memory(shard, array, writable)
        self._take_info(shard, array, path)
        if self._is_new(shard, path):
            self.shards.append(shard)
            self.regions.extend(regions_of(shard, array))

    def _take_info(self, shard: ShardedTensor, array: LocalArray, path: Path) -> None:
        key = shard.key
        if key in self.infos:
            self.infos[key] = self._agreed(self.infos[key], shard, array, path)
            return
        _check_unicode(key)
        nested = path if len(path) > 1 and ".".join(path) == key else None
        self.infos[key] = TensorInfo(key, array.dtype, shard.global_shape, nested, shard.declared_axis)
        self.paths[key] = path

    def _agreed(self, known: TensorInfo, shard: ShardedTensor, array: LocalArray, path: Path) -> TensorInfo:
        declared = known.declared_axis if shard.declared_axis is None else shard.declared_axis
        facts: tuple[tuple[str, object, object], ...] = (
            ("global_shape", known.shape, shard.global_shape),
            ("dtype", known.dtype, array.dtype),
            ("declared_axis", declared if known.declared_axis is None else known.declared_axis, declared),
        )
        for word, before, now in facts:
            if before != now:
                raise InvalidStateError(
                    f"the shards at {'/'.join(self.paths[shard.key])} and {'/'.join(path)} disagree about the {word} of"
                    f" one tensor: {before} and {now}",
                    key=shard.key,
                )
        return replace(known, declared_axis=declared) if declared != known.declared_axis else known

    def _is_new(self, shard: ShardedTensor, path: Path) -> bool:
        """False if the same tensor object has been taken for the same block."""
        held = shard.flattened_range
        place = (shard.key, shard.global_offset, shard.local_shape, str(held) if held else None)
        known = self.places.get(place)
        if known is None or not shard.size:
            self.places[place] = (shard.local_tensor, path)
            return True
        if known[0] is not shard.local_tensor:
            raise _collision(shard.key, known[1], path)
        return False


def _check_unicode(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidStateError(f"the name {name!r} is not valid Unicode", key=name, hint="rename it") from None


def _check_memory(shard: ShardedTensor, array: LocalArray, writable: bool) -> None:
    if not shard.is_flattened and array.shape != shard.local_shape:
        raise InvalidStateError(
            f"local_tensor has the shape {array.shape}, but local_shape is {shard.local_shape}",
            key=shard.key,
            box=shard.block,
        )
    if shard.is_flattened and math.prod(array.shape) < shard.size:
        raise InvalidStateError(
            f"local_tensor has {math.prod(array.shape)} elements, but flattened_range needs {shard.size}",
            key=shard.key,
            box=shard.block,
        )
    if writable and array.host is not None and not array.host.flags.writeable:
        raise InvalidStateError("cannot load into read-only memory", key=shard.key, hint="pass a writable copy")
