"""flexstore: save a sharded training state to any storage and load it back under any other cut.

These are the public names. They are imported when they are first used: ``import flexstore`` itself imports neither
numpy nor any framework. Everything else is reachable from its module, without the promise that it stays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flexstore.version import __version__

if TYPE_CHECKING:
    from flexstore.backends import register_backend
    from flexstore.checkpoint import Checkpoint, open_checkpoint
    from flexstore.core.box import Box
    from flexstore.core.tensor import ShardedTensor
    from flexstore.errors import FlexstoreError
    from flexstore.frameworks.sharding import build_sharded_state_dict, shard_weight
    from flexstore.groups.base import ProcessGroup
    from flexstore.loading import LoadReport, load
    from flexstore.resharding import reshard
    from flexstore.saving import PendingSave, save
    from flexstore.strategies import register_strategy, strategies

__all__ = [
    "Box",
    "Checkpoint",
    "FlexstoreError",
    "LoadReport",
    "PendingSave",
    "ProcessGroup",
    "ShardedTensor",
    "__version__",
    "build_sharded_state_dict",
    "load",
    "open_checkpoint",
    "register_backend",
    "register_strategy",
    "reshard",
    "save",
    "shard_weight",
    "strategies",
]

_HOME = {
    "Box": "flexstore.core.box",
    "Checkpoint": "flexstore.checkpoint",
    "FlexstoreError": "flexstore.errors",
    "LoadReport": "flexstore.loading",
    "PendingSave": "flexstore.saving",
    "ProcessGroup": "flexstore.groups.base",
    "ShardedTensor": "flexstore.core.tensor",
    "build_sharded_state_dict": "flexstore.frameworks.sharding",
    "load": "flexstore.loading",
    "open_checkpoint": "flexstore.checkpoint",
    "register_backend": "flexstore.backends",
    "register_strategy": "flexstore.strategies",
    "reshard": "flexstore.resharding",
    "save": "flexstore.saving",
    "shard_weight": "flexstore.frameworks.sharding",
    "strategies": "flexstore.strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    # Not an assignment: the import has bound a submodule of that name already, and it must stay bound.
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
