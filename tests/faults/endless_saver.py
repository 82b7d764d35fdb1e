"""Saves again and again until it is killed: ``endless_saver.py overwrite|fresh FOLDER TOLD [paddle]``.

Every element of the state tells the step that it belongs to. ``overwrite``: one checkpoint, replaced by each save;
``fresh``: a checkpoint per step, which nothing replaces. What a rank has done it tells by lines in the file TOLD, of
which it holds a shared lock for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import flexstore as fs
from flexstore.errors import CheckpointNotFoundError

ROWS, COLUMNS = 64, 1021


def tensors(step: int) -> dict[str, np.ndarray[Any, Any]]:
    """The global tensors of a step, all elements different from those of every other step."""
    place = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    return {
        "rows": place + step * place.size,
        "copies": (place % 7 + step).astype(np.float32),
        "scalar": np.array(step, np.int64),
    }


def state(step: int, rank: int, world: int) -> dict[str, Any]:
    """What a rank holds."""
    whole = tensors(step)
    bounds = [ROWS * number // world for number in (rank, rank + 1)]
    rows = fs.shard_weight(
        "rows", whole["rows"][slice(*bounds)].copy(), 0, rank, world, global_dim=ROWS, offset=bounds[0]
    )
    return {**whole, "rows": rows, "step": step, "nested": {"step": step}}


def last_step(folder: Path) -> int:
    """The step that is published, -1 if none is."""
    try:
        return int(fs.open_checkpoint(folder).common["step"])
    except CheckpointNotFoundError:
        return -1


def start_paddle() -> tuple[int, int]:
    import paddle
    import paddle.distributed as dist

    paddle.set_device("cpu")
    dist.init_parallel_env()
    return dist.get_rank(), dist.get_world_size()


def main(mode: str, folder: Path, told: Path, frameworks: list[str]) -> None:
    rank, world = start_paddle() if frameworks else (0, 1)
    with told.open("ab", buffering=0) as tell:
        fcntl.flock(tell, fcntl.LOCK_SH)
        tell.write(b"pid %d\n" % os.getpid())
        for step in count(last_step(folder) + 1 if mode == "overwrite" else 0):
            target = folder if mode == "overwrite" else folder / str(step)
            fs.save(state(step, rank, world), target, overwrite=mode == "overwrite").result()
            if rank == 0:
                tell.write(b"saved %d\n" % step)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
