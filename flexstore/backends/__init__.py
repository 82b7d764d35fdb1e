"""Storage by URL. Lazy: a backend's module is imported when its scheme is first used.

A backend is a function ``factory(url, **storage_options) -> Store`` under its URL scheme. Third parties register
theirs with `register_backend` or under the entry point group ``flexstore.backends``, and check it with the kit in
`flexstore.testing`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flexstore.backends.base import Store
from flexstore.backends.urls import redacted, scheme_of
from flexstore.errors import StoreError
from flexstore.plugins import PluginInfo, Registry

BackendFactory: TypeAlias = Callable[..., Store]

BACKENDS: Registry[BackendFactory] = Registry(
    "storage backend",
    "flexstore.backends",
    {
        "file": PluginInfo(
            "flexstore.backends.local:LocalStore.from_url", "folders of a local or mounted file system (plain paths)"
        ),
        "memory": PluginInfo(
            "flexstore.backends.memory:MemoryStore", "this process's memory, shared by its threads; for tests"
        ),
    },
)


def open_store(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Open the store at ``url``. Nothing is created or looked at yet.

    Args:
        url: a path, ``file://``, ``memory://``, or a URL of any registered backend.
        storage_options: keyword arguments for the backend.

    Returns:
        The store; the caller closes it.

    Raises:
        UnknownPluginError: no backend for that scheme.
        MissingDependencyError: its package is not installed.
        StoreError: the backend refuses the URL.
    """
    url = os.fspath(url)
    if not url:
        raise StoreError("the path or URL is empty")
    factory = BACKENDS.get(scheme_of(url))
    return factory(url, **dict(storage_options or {}))


def register_backend(scheme: str, factory: BackendFactory, *, replace: bool = False, description: str = "") -> None:
    """Make a backend known.

    Args:
        scheme: its URL scheme, in lower case, without ``://``.
        factory: called with the whole URL and the ``storage_options`` as keywords.
        replace: take the place of a backend of that scheme, for good.
        description: one line for listings.

    Raises:
        DuplicatePluginError: the scheme is taken and ``replace`` was not given.
    """
    BACKENDS.register(scheme, factory, replace=replace, description=description)


__all__ = ["BACKENDS", "BackendFactory", "Store", "open_store", "redacted", "register_backend", "scheme_of"]
