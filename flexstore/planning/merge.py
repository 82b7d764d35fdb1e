"""What all ranks say about names and plain values, as one. Pure; boxes are merged by `flexstore.planning.held`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flexstore.core.manifest import TensorInfo
from flexstore.errors import InvalidStateError, KeyCollisionError
from flexstore.planning.items import Survey


def merge_tensors(surveys: Sequence[Survey]) -> tuple[TensorInfo, ...]:
    """The global tensors that any rank knows, sorted by key.

    Raises:
        KeyCollisionError: ranks have one key at different places of their states.
        InvalidStateError: ranks disagree about dtype, shape or declared axis of a key (R2).
    """
    known: dict[str, TensorInfo] = {}
    for survey in surveys:
        for info in survey.tensors:
            first = known.setdefault(info.key, info)
            if first is not info and first != info:
                known[info.key] = _agreed(first, info, surveys, survey.rank)
    return tuple(known[key] for key in sorted(known))


def _agreed(first: TensorInfo, info: TensorInfo, surveys: Sequence[Survey], rank: int) -> TensorInfo:
    """Two ranks' views of one tensor; an axis need not be declared by both."""
    if first.declared_axis is None:
        first = replace(first, declared_axis=info.declared_axis)
    if first != info and (info.declared_axis is not None or replace(first, declared_axis=None) != info):
        raise _disagreement(first, info, surveys, rank)
    return first


def merge_common(surveys: Sequence[Survey]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The plain values that any rank has, and their paths, in order of first sight.

    Values are equal if their types and contents are, all the way down; nan equals nan, the order of a dict is free.

    Returns:
        ``(common, common_paths)`` as in `Manifest`.

    Raises:
        KeyCollisionError: ranks have one name at different places of their states.
        InvalidStateError: ranks have different values under one name.
    """
    owner: dict[str, Survey] = {}
    for survey in surveys:
        for name, value in survey.common.items():
            first = owner.setdefault(name, survey)
            if _path(name, first) != _path(name, survey) or not _is_same(first.common[name], value):
                raise _difference(name, first, survey)
    common = {name: survey.common[name] for name, survey in owner.items()}
    paths = {name: survey.common_paths[name] for name, survey in owner.items() if name in survey.common_paths}
    return common, paths


def check_names(tensors: Iterable[TensorInfo], common: Mapping[str, Any]) -> None:
    """Check that no name is both a tensor's and a plain value's (D16).

    Raises:
        KeyCollisionError: one is.
    """
    for tensor in tensors:
        if tensor.key in common:
            raise KeyCollisionError(
                "a tensor and a plain value would be stored under one name", key=tensor.key, hint="rename one of them"
            )


def _is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return _is_same(_pairs(a), _pairs(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return bool(a == b or (a != a and b != b))


def _pairs(values: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(values.items(), key=lambda pair: repr(pair[0]))


def _disagreement(a: TensorInfo, b: TensorInfo, surveys: Sequence[Survey], rank: int) -> InvalidStateError:
    name = next(name for name in ("dtype", "shape", "declared_axis", "path") if getattr(a, name) != getattr(b, name))
    before, now = getattr(a, name), getattr(b, name)
    first = next(s.rank for s in surveys for t in s.tensors if t.key == a.key and getattr(t, name) == before)
    kind = KeyCollisionError if name == "path" else InvalidStateError
    return kind(
        f"ranks {first} and {rank} disagree about the {name} of a tensor: {before} and {now}",
        key=a.key,
        rank=rank,
        hint="all shards of a tensor describe the same global tensor; different tensors need different keys",
    )


def _path(name: str, survey: Survey) -> tuple[str, ...]:
    return survey.common_paths.get(name, (name,))


def _difference(name: str, a: Survey, b: Survey) -> InvalidStateError:
    ranks = f"ranks {a.rank} and {b.rank} have"
    if _path(name, a) != _path(name, b):
        return KeyCollisionError(
            f"{ranks} one name at different places: {_path(name, a)} and {_path(name, b)}",
            key=name,
            rank=b.rank,
            hint="rename one of them",
        )
    return InvalidStateError(
        f"{ranks} different plain values: {a.common[name]!r:.200} and {b.common[name]!r:.200}",
        key=name,
        rank=b.rank,
        hint="plain values are stored once for all ranks; keep what differs per rank under a name per rank",
    )
