"""Frameworks: whose tensors a state is made of, and how to see their memory.

No framework is imported unless the program has imported it already.
"""

from flexstore.frameworks.base import Framework
from flexstore.frameworks.describe import Description, describe
from flexstore.frameworks.lookup import framework_of, is_tensor
from flexstore.frameworks.sharding import build_sharded_state_dict, shard_weight

__all__ = [
    "Description",
    "Framework",
    "build_sharded_state_dict",
    "describe",
    "framework_of",
    "is_tensor",
    "shard_weight",
]
