"""Run on each rank: writes which boxes of some DistTensors lie on this rank, and checks the elements there."""

import json
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist

from flexstore.frameworks import describe


def cases():
    """Name → mesh and placements."""
    both, reverse, second = (dist.ProcessMesh(ranks) for ranks in ([0, 1], [1, 0], [1]))
    return {
        "rows": (both, [dist.Shard(0)]),
        "columns": (both, [dist.Shard(1)]),
        "replicated": (both, [dist.Replicate()]),
        "reversed": (reverse, [dist.Shard(0)]),
        "elsewhere": (second, [dist.Shard(0)]),
        "two_dims": (dist.ProcessMesh([[0, 1]]), [dist.Shard(1), dist.Shard(0)]),
    }


def main(folder):
    paddle.set_device("cpu")
    dist.init_parallel_env()
    whole = np.arange(15, dtype=np.float32).reshape(5, 3)
    state = {name: dist.shard_tensor(paddle.to_tensor(whole), *place) for name, place in cases().items()}
    regions = describe({"model": state}, writable=True).regions
    for region in regions:
        np.testing.assert_array_equal(region.host(), whole[region.box.within((0, 0))])
        region.store(region.box, -region.fetch(region.box))
        np.testing.assert_array_equal(
            state[region.key.removeprefix("model.")]._local_value().numpy(), -whole[region.box.within((0, 0))]
        )
    boxes = {region.key: str(region.box) for region in regions}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(boxes))


main(sys.argv[1])
