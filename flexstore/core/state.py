"""Flattening of a nested state into named leaves, and putting plain values back.

The name of a leaf is its path joined by dots, list positions as decimal numbers (Paddle's rule). A state is a tree of
dicts, lists and tuples, at most `MAX_DEPTH` levels deep. What is a tensor is asked from the caller; all else must be a
plain value (`flexstore.core.plain`). Pure: no tensor is looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from flexstore.core.plain import Plain, as_plain, check_depth
from flexstore.errors import InvalidStateError, KeyCollisionError

Path: TypeAlias = tuple[str, ...]


class Leaf(NamedTuple):
    """A value and the pieces of its place in the state."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class FlatState:
    """The leaves of a state by name; no name is in both.

    Attributes:
        tensors: tensors, shards and lists of shards, as found.
        plain: all else, as exact plain types.
    """

    tensors: dict[str, Leaf] = field(default_factory=dict)
    plain: dict[str, Leaf] = field(default_factory=dict)


def flatten(state: Any, is_leaf: Callable[[Any], bool]) -> FlatState:
    """Name every leaf of a nested state.

    A dict is descended into and each of its leaves has a name, unless it is empty or has keys that are not str (then
    it is one plain value). A list or tuple is descended into if there is a tensor inside, else it is one plain value.

    Args:
        state: a dict or list.
        is_leaf: true for what is to be kept whole in `FlatState.tensors`.

    Raises:
        KeyCollisionError: two leaves have one name (D16).
        UnsupportedValueError: a leaf that is neither a tensor nor a plain value (R4).
        InvalidStateError: not a container, a tensor below a key that is not a str, nested too deep, or cyclic.
    """
    if is_leaf(state) or not isinstance(state, dict | list):  # plain values could not be put back into a tuple
        raise InvalidStateError(f"the state is a {type(state).__name__}", hint="give a dict, such as {'weight': ...}")
    flat = FlatState()
    if _is_branch(state, (), is_leaf) or not isinstance(state, dict):
        _descend(flat, (), state, is_leaf)
    elif state:
        raise InvalidStateError("the keys of the state must be str")
    return flat


def _visit(flat: FlatState, path: Path, value: Any, is_leaf: Callable[[Any], bool]) -> None:
    if is_leaf(value):
        _add(flat, flat.tensors, Leaf(path, value))
    elif _is_branch(value, path, is_leaf):
        _descend(flat, path, value, is_leaf)
    else:
        _add(flat, flat.plain, Leaf(path, as_plain(value, path)))


def _descend(flat: FlatState, path: Path, container: Any, is_leaf: Callable[[Any], bool]) -> None:
    check_depth(path)
    for at, child in _children(container):
        _visit(flat, (*path, str(at)), child, is_leaf)


def _add(flat: FlatState, leaves: dict[str, Leaf], leaf: Leaf) -> None:
    name = ".".join(leaf.path)
    other = flat.tensors.get(name) or flat.plain.get(name)
    if other is not None:
        raise KeyCollisionError(
            f"the values at {'/'.join(other.path)} and {'/'.join(leaf.path)} would both be stored as {name!r}",
            key=name,
            hint="rename one of the two",
        )
    leaves[name] = leaf


def _is_branch(value: Any, path: Path, is_leaf: Callable[[Any], bool]) -> bool:
    """True if the leaves of ``value`` have names of their own."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return bool(value)
        if _holds_leaf(value, path, is_leaf):
            strange = next(key for key in value if not isinstance(key, str))
            raise InvalidStateError(
                f"the dict at {'/'.join(path) or 'the top'} holds tensors and has the key {strange!r}"
                f" of type {type(strange).__name__}",
                hint="keys above a tensor must be str",
            )
        return False
    return isinstance(value, list | tuple) and _holds_leaf(value, path, is_leaf)


def _holds_leaf(value: Any, path: Path, is_leaf: Callable[[Any], bool]) -> bool:
    if is_leaf(value):
        return True
    if not isinstance(value, dict | list | tuple):
        return False
    check_depth(path)
    return any(_holds_leaf(child, (*path, str(at)), is_leaf) for at, child in _children(value))


def _children(container: Any) -> Iterable[tuple[Any, Any]]:
    """Key or position of each child, and the child."""
    return container.items() if isinstance(container, dict) else enumerate(container)


def restore(state: Any, values: Mapping[str, Plain]) -> Any:
    """Put plain values back at their names: in place in dicts and lists, while tuples around them are rebuilt.

    Args:
        state: a state that `flatten` has accepted.
        values: name → value. Names without a place in the state are left out; `FlatState.plain` tells which have one.

    Returns:
        ``state`` itself, or its copy if it is a tuple that had to change.
    """
    return _restored((), state, values)


def _restored(path: Path, value: Any, values: Mapping[str, Plain]) -> Any:
    """What ``value`` becomes: a value given for its name, or itself with its children restored."""
    name = ".".join(path)
    if path and name in values:
        return values[name]
    if not isinstance(value, dict | list | tuple):
        return value
    changed = {}
    for at, child in _children(value):
        new = _restored((*path, str(at)), child, values)
        if new is not child:
            changed[at] = new
    return _with_children(value, changed) if changed else value


def _with_children(container: Any, changed: Mapping[Any, Any]) -> Any:
    if isinstance(container, tuple):
        items = [changed.get(i, item) for i, item in enumerate(container)]
        return container._make(items) if hasattr(container, "_make") else tuple(items)
    for at, child in changed.items():
        container[at] = child
    return container
