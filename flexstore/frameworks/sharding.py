"""Describing a layer's shards: which axis of each weight is cut over the ranks.

The words are Paddle's (``shard_weight``, ``build_sharded_state_dict``); the tensors may be of any framework. Nothing is
copied or communicated.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError
from flexstore.frameworks.lookup import is_tensor
from flexstore.frameworks.shards import is_shard, whole


def shard_weight(
    key: str,
    tensor: Any,
    axis: int | None,
    rank: int,
    size: int,
    *,
    global_dim: int | None = None,
    offset: int | None = None,
    declare_axis: bool = False,
) -> ShardedTensor:
    """Describe a weight that is cut along one axis over the ranks of a group.

    Args:
        key: name of the global tensor.
        tensor: this rank's part.
        axis: the cut axis, not negative; None if every rank holds the whole tensor.
        rank, size: this rank's position among the parts, and their number; the parts are equal unless
            ``global_dim`` is given.
        global_dim: extent of the whole tensor along the axis, for uneven parts; needs ``offset``.
        offset: first index of this rank's part along the axis.
        declare_axis: store the axis as a semantic one, to be checked at load (the vocabulary axis of an LM head, R6).

    Raises:
        InvalidStateError: the numbers contradict each other.
    """
    shape = tuple(int(n) for n in tensor.shape)
    if not 0 <= rank < size:
        raise InvalidStateError(f"rank {rank} is not one of {size}", key=key)
    if (global_dim is None) != (offset is None):
        raise InvalidStateError("global_dim and offset must be given together", key=key)
    if axis is None:
        return whole(key, tensor, shape)
    if not 0 <= axis < len(shape):
        raise InvalidStateError(f"axis {axis} of a tensor of shape {shape}", key=key)
    return ShardedTensor(
        key,
        tensor,
        local_shape=shape,
        global_shape=_with(shape, axis, shape[axis] * size if global_dim is None else global_dim),
        global_offset=_with((0,) * len(shape), axis, shape[axis] * rank if offset is None else offset),
        declared_axis=axis if declare_axis else None,
    )


def _with(numbers: tuple[int, ...], axis: int, number: int) -> tuple[int, ...]:
    return (*numbers[:axis], number, *numbers[axis + 1 :])


def build_sharded_state_dict(
    state: Mapping[str, Any],
    shard_rules: Mapping[str, int] | None = None,
    *,
    rank: int = 0,
    size: int = 1,
    prefix: str = "",
) -> dict[str, Any]:
    """Describe all weights of a layer.

    Args:
        state: name → tensor. What is no tensor (such as ``bias=None``) and what is a shard already stays as it is.
        shard_rules: name → cut axis; a name may be a pattern, in which ``*`` stands for any characters, dots too. A
            name that no rule matches is replicated; a rule that matches no name does nothing.
        rank, size: see `shard_weight`.
        prefix: put before every name, with its dot: ``"decoder.0."``.

    Returns:
        ``prefix + name`` → `ShardedTensor` of that key, or the value that stayed.

    Raises:
        InvalidStateError: two patterns want different axes for one name, or see `shard_weight`.
    """
    rules = shard_rules or {}
    described = {}
    for name, value in state.items():
        key = prefix + name
        if is_tensor(value) and not is_shard(value):
            value = shard_weight(key, value, _axis(name, rules), rank, size)
        described[key] = value
    return described


def _axis(name: str, rules: Mapping[str, int]) -> int | None:
    """The axis of the rule for exactly that name, else of the patterns that match it, else None."""
    if name in rules:
        return rules[name]
    axes = {axis for pattern, axis in rules.items() if fnmatchcase(name, pattern)}
    if len(axes) > 1:
        raise InvalidStateError(f"the shard rules cut {name!r} along the axes {sorted(axes)}", key=name)
    return axes.pop() if axes else None
