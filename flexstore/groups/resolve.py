"""`resolve_group`: what the caller's ``group=`` means.

Promises: a framework that the caller has not imported is not imported here either, unless it is asked for by name. It
initialises nothing and does not communicate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

from flexstore.errors import GroupError, MissingDependencyError, UnknownPluginError
from flexstore.groups.base import ProcessGroup
from flexstore.groups.framework import FrameworkGroup
from flexstore.groups.single import SingleGroup

_FRAMEWORKS = {"paddle": "PaddleGroup", "torch": "TorchGroup"}
"""Frameworks whose groups are known, in the order in which they are asked, and the class in the module of that name."""


def resolve_group(group: object = None) -> ProcessGroup:
    """The process group that the caller means.

    Args:
        group: a `ProcessGroup`; a group object of paddle or torch; ``"single"``, ``"paddle"`` or ``"torch"`` for the
            default group of that kind; or None for the default group of the framework that the process has imported and
            initialised, else a group of one.

    Raises:
        UnknownPluginError: no kind of group has that name.
        MissingDependencyError: the framework named is not installed.
        GroupError: the framework is not initialised, this process is not in the group, or it is no group at all.
    """
    if isinstance(group, ProcessGroup):
        return group
    if isinstance(group, str):
        return SingleGroup() if group == "single" else _named(group)()
    for known in _imported():
        if group is None and known.initialised():
            return known()
        if known.accepts(group):
            return known(group)
    if group is None:
        return SingleGroup()
    raise GroupError(
        f"{type(group).__name__} is not a process group",
        hint=f"pass None, 'single', {', '.join(map(repr, _FRAMEWORKS))}, a group of theirs or a flexstore.ProcessGroup",
    )


def _imported() -> Iterator[type[FrameworkGroup]]:
    return (_named(framework) for framework in _FRAMEWORKS if framework in sys.modules)


def _named(framework: str) -> type[FrameworkGroup]:
    if framework not in _FRAMEWORKS:
        raise UnknownPluginError(f"no kind of group is called {framework!r}; known: single, {', '.join(_FRAMEWORKS)}")
    try:
        module = import_module(f"flexstore.groups.{framework}")
    except ImportError as error:
        raise MissingDependencyError(
            f"a group of {framework} needs {framework}, which cannot be imported", hint=f"install {framework}"
        ) from error
    kind: type[FrameworkGroup] = getattr(module, _FRAMEWORKS[framework])
    return kind
