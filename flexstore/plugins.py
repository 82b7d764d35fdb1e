"""`Registry`: strategies and backends by name, imported when they are first asked for.

A name is looked up among what the user registered, then among flexstore's own, then among the entry points of
installed packages. Promises: nothing is imported before `Registry.get`; a taken name is an error, unless the user
says ``replace=True``, and then the user's one wins for good; a package that is not installed gives the sentence that
the user needs. Does not promise that a plugin works once it is imported: the conformance kits in `flexstore.testing`
are for that. Registries are thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Generic, TypeVar

from flexstore.errors import DuplicatePluginError, MissingDependencyError, PluginError, UnknownPluginError

Factory = TypeVar("Factory")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """Where a plugin is found, and what it needs.

    Args:
        target: dotted name of its factory, ``package.module:name`` or ``package.module:name.attribute``.
        description: one line.
        requires: modules of other packages that it imports.
        hint: what to do if one of them is missing; by default, to install them.
    """

    target: str
    description: str
    requires: tuple[str, ...] = ()
    hint: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of ``requires``, and of the target's own package, that are not installed."""
        needed = (*self.requires, self.target)
        return tuple(name for name in dict.fromkeys(map(_package, needed)) if find_spec(name) is None)


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One line of a listing: name, description, and whether all that the plugin needs is installed."""

    name: str
    description: str
    installed: bool


@dataclass(frozen=True, slots=True)
class _Registered(Generic[Factory]):
    """What a user registered."""

    factory: Factory
    description: str


class Registry(Generic[Factory]):
    """Named factories of one kind.

    Args:
        kind: the word for messages, such as ``strategy``.
        entry_point_group: the group under which packages offer plugins; read once, when it is first needed. Entry
            points do not replace built-in plugins.
        builtin: flexstore's own plugins.
    """

    def __init__(self, kind: str, entry_point_group: str, builtin: Mapping[str, PluginInfo]) -> None:
        self._kind = kind
        self._group = entry_point_group
        self._builtin = dict(builtin)
        self._registered: dict[str, _Registered[Factory]] = {}
        self._offered: dict[str, tuple[PluginInfo, ...]] | None = None
        self._lock = threading.RLock()

    def register(self, name: str, factory: Factory, *, replace: bool = False, description: str = "") -> None:
        """Make ``factory`` known as ``name``.

        Raises:
            DuplicatePluginError: the name is taken and ``replace`` was not given.
        """
        with self._lock:
            if not replace and name in self._names():
                raise DuplicatePluginError(
                    f"the {self._kind} {name!r} exists already", hint="pass replace=True to take its place"
                )
            self._registered[name] = _Registered(factory, description)

    def get(self, name: str) -> Factory:
        """The factory of that name.

        Raises:
            UnknownPluginError: there is none.
            DuplicatePluginError: several installed packages offer different plugins under this name.
            MissingDependencyError: a package that it needs is not installed, or cannot be imported.
        """
        with self._lock:
            registered = self._registered.get(name)
        if registered is not None:
            return registered.factory
        factory: Factory = self._load(name, self._info(name))
        return factory

    def describe(self) -> tuple[PluginStatus, ...]:
        """All known plugins, sorted by name. Imports none of them."""
        with self._lock:
            return tuple(self._status(name) for name in self._names())

    def _status(self, name: str) -> PluginStatus:
        if name in self._registered:
            return PluginStatus(name, self._registered[name].description, True)
        infos = self._infos(name)
        return PluginStatus(name, infos[0].description, len(infos) == 1 and not infos[0].missing)

    def _names(self) -> list[str]:
        return sorted({*self._registered, *self._builtin, *self._entry_points()})

    def _infos(self, name: str) -> tuple[PluginInfo, ...]:
        if name in self._builtin:
            return (self._builtin[name],)
        return self._entry_points().get(name, ())

    def _info(self, name: str) -> PluginInfo:
        infos = self._infos(name)
        if not infos:
            raise self._unknown(name)
        if len(infos) > 1:
            raise DuplicatePluginError(
                f"several packages offer the {self._kind} {name!r}: {', '.join(info.target for info in infos)}",
                hint="uninstall all but one, or register the one you want with replace=True",
            )
        return infos[0]

    def _load(self, name: str, info: PluginInfo) -> Any:
        if info.missing:
            raise MissingDependencyError(
                f"the {self._kind} {name!r} needs {', '.join(info.missing)}, which is not installed",
                hint=info.hint or f"pip install {' '.join(info.missing)}",
            )
        module, _, attribute = info.target.partition(":")
        try:
            return attrgetter(attribute)(import_module(module))
        except ImportError as error:
            raise MissingDependencyError(
                f"the {self._kind} {name!r} cannot be imported: {error}", hint=info.hint or None
            ) from error
        except AttributeError as error:
            raise PluginError(f"the {self._kind} {name!r} is not at {info.target}: {error}") from error

    def _unknown(self, name: str) -> UnknownPluginError:
        with self._lock:
            known = self._names()
        close = get_close_matches(name, known, n=3)
        return UnknownPluginError(
            f"unknown {self._kind} {name!r}",
            hint=(f"did you mean {' or '.join(close)}? " if close else "") + f"known: {', '.join(known)}",
        )

    def _entry_points(self) -> dict[str, tuple[PluginInfo, ...]]:
        with self._lock:
            if self._offered is None:
                self._offered = _offers(tuple(entry_points(group=self._group)))
            return self._offered


def _offers(points: tuple[EntryPoint, ...]) -> dict[str, tuple[PluginInfo, ...]]:
    """Entry points by name. One that is seen twice (a package that is on the path twice) counts once."""
    offers: dict[str, dict[str, PluginInfo]] = {}
    for point in points:
        target = f"{point.module}:{point.attr}"
        package = point.dist.name if point.dist is not None else point.module
        offers.setdefault(point.name, {})[target] = PluginInfo(target, f"from the package {package}")
    return {name: tuple(by_target.values()) for name, by_target in offers.items()}


def _package(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]
