"""Paddle and flexstore save the same state and load what the other one saved.

Started by ``paddle.distributed.launch`` as ``interop.py FOLDER``. Each rank writes what came of it to
``FOLDER/<ranks>-<rank>.json``; the checkpoints stay in ``FOLDER/<ranks>-<name>``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist

import flexstore as fs
from flexstore.testing import Cut, expected
from tests.layout_kit import columns, inverted, layout
from tests.paddle_kit import state_of, tensor_of, weights_of, wrong

PADDLE_SAVES: dict[str, dict[str, Any]] = {
    "shards": {},
    "replicas": {"save_replicas": True},
    "safetensors": {"safetensors": True},
}
NO_SAFETENSORS = ("complex128",)
"""Dtypes that the safetensors library has no name for."""

GLOO_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64", "bfloat16")
"""Dtypes that Paddle sends over gloo; it ends the process for others."""

LARGE = (1536, 2048)
"""Shape of a replicated float32 tensor of 12 MiB, which flexstore cuts among the ranks that hold it."""


def storable(name: str, cuts: list[Cut]) -> list[Cut]:
    """Those that one of Paddle's formats can hold."""
    return [cut for cut in cuts if name != "safetensors" or cut.dtype.name not in NO_SAFETENSORS]


def paddle_saves(prefix: str) -> None:
    """Shards of every kind, each way Paddle has; and plain tensors in a nested dict."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, options in PADDLE_SAVES.items():
        dist.save_state_dict(weights_of(storable(name, layout(world, 0)), rank), f"{prefix}{name}", **options)
    nested: dict[str, dict[str, Any]] = {}
    for cut in layout(1, 0):
        dtype, ndim = cut.key.split(".")
        nested.setdefault(dtype, {})[ndim] = tensor_of(expected(cut.key, cut.shape, cut.dtype))
    dist.save_state_dict(nested, f"{prefix}nested")


def flexstore_loads(prefix: str) -> dict[str, list[str]]:
    """What Paddle saved, under another layout; the names that came out wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    outcome = {}
    for turn, name in enumerate((*PADDLE_SAVES, "nested"), start=1):
        cuts = storable(name, layout(world, turn))
        state = state_of(cuts, rank, inverted)
        fs.load(state, f"{prefix}{name}")
        outcome[name] = wrong(state, cuts, rank)
    return outcome


def large() -> paddle.Tensor:
    return paddle.arange(LARGE[0] * LARGE[1], dtype="float32").reshape(LARGE)


def flexstore_saves(prefix: str) -> dict[str, int]:
    """Other values first, and then the right ones over them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for change in (inverted, np.asarray):
        state = state_of(layout(world, 2), rank, change) | {"large": large(), "step": 7}
        saved = fs.save(state, f"{prefix}flexstore", overwrite=True).result()
    return {"pieces of the large one": len(saved["large"].chunks)}


def paddle_loads(prefix: str) -> list[str]:
    """What flexstore saved, in columns; the names that came out wrong.

    On several ranks Paddle moves every tensor through a device, so that on a host without one it must think it does.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = [cut for cut in layout(1, 0) if cut.dtype.name in GLOO_DTYPES]
    everyone = [Cut(cut.key, cut.shape, cut.dtype, columns(cut.shape, world)) for cut in whole]
    cuts = [cut for cut in everyone if any(share.size for share in cut.ranks[rank])]
    state = weights_of(cuts, rank, inverted)
    with mock.patch.object(paddle.Tensor, "cuda", lambda tensor, *_: tensor):
        dist.load_state_dict(state, f"{prefix}flexstore")
    return wrong(state, cuts, rank)


def meet() -> None:
    if dist.is_initialized():  # not if there is only one rank
        dist.barrier()


def main(folder: Path) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    prefix = f"{folder}/{dist.get_world_size()}-"
    paddle_saves(prefix)
    meet()
    outcomes = {
        "flexstore loads": flexstore_loads(prefix),
        "flexstore saves": flexstore_saves(prefix),
        "Paddle loads": paddle_loads(prefix),
    }
    Path(f"{prefix}{dist.get_rank()}.json").write_text(json.dumps(outcomes))
    meet()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
