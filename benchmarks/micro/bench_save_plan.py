"""Time to plan a save of a large job, and to make its surveys' signatures, in one process.

Three layouts of 1,000 matrices over 1,024 ranks, 1,000 shards per rank: 8 replicas of 128 row blocks each, a 2-D grid
of 8 x 128 distinct blocks each, and 1,024 full replicas of each. Every rank has its own `TensorInfo` objects, as it
would after the surveys travelled. Run it as ``python benchmarks/micro/bench_save_plan.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import TensorInfo
from flexstore.planning.items import Survey
from flexstore.planning.save import plan_save

RANKS = 1024
TENSORS = 1000
GLOBAL_SHAPE = (8192, 4096)
Block = tuple[tuple[int, int], tuple[int, int]]


def replicas_8(rank: int) -> Block:
    """Rows over 128 ranks, repeated 8 times."""
    return (rank % 128 * 64, 0), (64, 4096)


def distinct(rank: int) -> Block:
    """A grid of 8 x 128 blocks."""
    return (rank // 128 * 1024, rank % 128 * 32), (1024, 32)


def replicas_all(rank: int) -> Block:
    """Everything on every rank."""
    return (0, 0), GLOBAL_SHAPE


def survey(rank: int, block: Callable[[int], Block]) -> Survey:
    """What one rank holds: its block of every matrix."""
    tensors = tuple(
        TensorInfo(f"model.layers.{i}.weight", dtype_named("bfloat16"), GLOBAL_SHAPE) for i in range(TENSORS)
    )
    offset, shape = (np.repeat(np.array(column, np.int64)[:, None], TENSORS, axis=1) for column in block(rank))
    return Survey(rank, tensors, np.arange(TENSORS), offset, shape, {"step": 1, "lr": 1e-4})


def run() -> dict[str, float]:
    """Seconds per layout, and the highest load over the mean."""
    titles = {replicas_8: "8 replicas of each", distinct: "all distinct", replicas_all: "all the same"}
    result: dict[str, float] = {}
    for block, title in titles.items():
        case = f"save plan, {RANKS:,} ranks x {TENSORS:,} shards, {title}"
        surveys = [survey(rank, block) for rank in range(RANKS)]
        start = time.perf_counter()
        plan = plan_save(surveys)
        result[f"{case}: seconds"] = round(time.perf_counter() - start, 3)
        load = plan.loads()
        result[f"{case}: highest load / mean load"] = round(float(load.max() / load.mean()), 4)
    return result


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
