"""Saves one state several ways with real Paddle. Started by ``paddle.distributed.launch``.

Usage: paddle_writer.py FOLDER. The state is that of `paddle_state.arrays`, cut by `paddle_state.cut`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

from tests.distributed.paddle_state import arrays, cut

SAVES = [
    ("plain", {}),
    ("replicas", {"save_replicas": True}),
    ("safetensors", {"safetensors": True}),
    ("versions", {"unique_id": 2}),
    ("versions", {"unique_id": 12}),
]


def tensor(values: np.ndarray) -> paddle.Tensor:
    """``values`` as a tensor of their dtype, which Paddle cannot always take over from numpy."""
    return paddle.to_tensor(np.ascontiguousarray(values, np.float64).reshape(values.shape)).cast(values.dtype.name)


def state(rank: int, world: int) -> dict[str, object]:
    """What one rank holds: sharded weights, a nested dict, a strided tensor and DistTensors."""
    held: dict[str, object] = {}
    for key, values in arrays().items():
        offset, shape, flat = cut(key, values.shape, rank, world)
        block = values[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))]
        if flat is None:
            held[key] = ShardedWeight(key, tensor(block), shape, values.shape, offset)
        elif flat[0] < flat[1]:
            part = tensor(block.reshape(-1)[slice(*flat)])
            held[key] = ShardedWeight(key, part, shape, values.shape, offset, True, slice(*flat))
    return held


def nested(world: int) -> dict[str, object]:
    """Plain tensors in nested dicts; DistTensors on a mesh of all ranks."""
    values = paddle.arange(24, dtype="float32").reshape([4, 6])
    mesh = dist.ProcessMesh(list(range(world)), dim_names=["x"])
    return {
        "model": {
            "whole": values,
            "strided": values.transpose([1, 0]),
            "rows": dist.shard_tensor(values, mesh, [dist.Shard(0)]),
            "columns": dist.shard_tensor(values, mesh, [dist.Shard(1)]),
            "copies": dist.shard_tensor(values, mesh, [dist.Replicate()]),
        }
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, options in SAVES:
        dist.save_state_dict(state(rank, world), str(folder / name), **options)
    dist.save_state_dict(nested(world), str(folder / "nested"))
