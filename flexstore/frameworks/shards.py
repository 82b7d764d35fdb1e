"""Shard objects of any framework, recognised by the field's attribute names.

`ShardedTensor` and Paddle's ``ShardedWeight`` carry the same facts under the same names, so one reader serves both;
no framework is imported for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError

_NAMES = ("key", "local_tensor", "local_shape", "global_shape", "global_offset")


def is_shard(value: object) -> bool:
    """True for a `ShardedTensor` and for whatever has its attributes."""
    return isinstance(value, ShardedTensor) or all(hasattr(value, name) for name in _NAMES)


def as_shard(value: Any) -> ShardedTensor:
    """The `ShardedTensor` that a shard object describes.

    Raises:
        InvalidStateError: its numbers contradict each other.
    """
    if isinstance(value, ShardedTensor):
        return value
    return ShardedTensor(
        **{name: getattr(value, name) for name in _NAMES},
        is_flattened=bool(getattr(value, "is_flattened", False)),
        flattened_range=getattr(value, "flattened_range", None),
    )


def whole(key: str, tensor: Any, shape: Sequence[int]) -> ShardedTensor:
    """A tensor that this rank holds all of."""
    shape = tuple(shape)
    return ShardedTensor(key, tensor, shape, shape, (0,) * len(shape))


def no_memory(kind: str) -> InvalidStateError:
    """The error for a tensor that has a name but no elements to save or to load into."""
    return InvalidStateError(
        f"the {kind} has no memory: it was cleared, or never initialised",
        hint="pass the tensors that hold the elements (such as the slices of a sharded parameter), or leave it out",
    )
