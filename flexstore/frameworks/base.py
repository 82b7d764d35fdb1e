"""What the stories need to know about a framework's tensors, and nothing more.

A framework recognises its own tensors and shards, and shows their memory as `LocalArray`s.
"""

from __future__ import annotations

from typing import Any, Protocol

from flexstore.core.region import LocalArray
from flexstore.core.tensor import ShardedTensor


class Framework(Protocol):
    """An adapter for one framework. Must be importable lazily and cheap to ask."""

    name: str

    def is_tensor(self, value: object) -> bool:
        """True for a tensor or a shard object of this framework."""
        ...

    def shard(self, path: str, value: Any) -> ShardedTensor | None:
        """Describe a tensor or shard of this framework: its key, block and offset; no copies.

        A plain tensor is a whole, replicated one named ``path``. None if this rank holds nothing of it (a DistTensor
        of another mesh, an uninitialised parameter).
        """
        ...

    def local_array(self, tensor: Any) -> LocalArray:
        """The elements of ``ShardedTensor.local_tensor``."""
        ...
