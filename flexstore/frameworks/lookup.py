"""Which framework a value belongs to, without importing any that the program has not imported itself."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from flexstore.frameworks.base import Framework
from flexstore.frameworks.shards import is_shard

_NAMES = ("numpy", "paddle", "torch")
_loaded: dict[str, Framework] = {}


def framework_of(value: Any) -> Framework | None:
    """The framework whose tensor ``value`` is, or of the tensor that the shard ``value`` holds; None for neither."""
    for name in _NAMES:
        framework = _loaded.get(name) or _load(name)
        if framework is not None and framework.is_tensor(value):
            return framework
    return framework_of(value.local_tensor) if is_shard(value) else None


def is_tensor(value: object) -> bool:
    """True for a tensor of any framework and for any shard."""
    return framework_of(value) is not None


def _load(name: str) -> Framework | None:
    if name not in sys.modules:
        return None
    framework: Framework = import_module(f"flexstore.frameworks.{name}").FRAMEWORK
    _loaded[name] = framework
    return framework
