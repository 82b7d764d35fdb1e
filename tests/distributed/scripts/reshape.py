"""One state goes from 2 ranks to 4 to 3, and what else ranks of a real job do with `flexstore`'s stories.

Started by ``paddle.distributed.launch`` as ``reshape.py FOLDER``; the number of ranks chooses the scenarios. Each rank
writes what came of them to ``FOLDER/<ranks>-<rank>.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist

import flexstore as fs
from flexstore.backends.local import LocalStore
from flexstore.errors import CheckpointNotFoundError, FlexstoreError
from flexstore.groups.paddle import PaddleGroup
from flexstore.testing import Cut, FaultyStore
from tests.distributed.training import OPTIMIZERS, trained
from tests.layout_kit import inverted, layout
from tests.paddle_kit import bits_of, state_of, wrong

PATIENCE = 2.0
"""Seconds after which a rank that is left alone gives up."""

GRID = np.arange(42, dtype=np.float32).reshape(7, 6)
PLAIN = {"step": 7, "rate": 0.1, "name": "adamw", "betas": [0.9, 0.95], "seed": None, "key": b"\x00\xff", "on": True}
NO_PLAIN = {"step": 0, "rate": 0.0, "name": "", "betas": [], "seed": 1, "key": b"", "on": False}


def save_state(folder: Path, name: str, turn: int) -> list[int]:
    """Save the whole layout, with plain values in a nested dict and an absent parameter."""
    rank, world = dist.get_rank(), dist.get_world_size()
    state = state_of(layout(world, turn), rank) | {"optimizer": {"group": PLAIN}, "bias": None}
    saved = fs.save(state, folder / name).result()
    return [len(saved), saved.manifest.world_size]


def load_state(folder: Path, name: str, turn: int) -> dict[str, Any]:
    """Load it into tensors that hold something else."""
    rank, world = dist.get_rank(), dist.get_world_size()
    cuts = layout(world, turn)
    state = state_of(cuts, rank, inverted) | {"optimizer": {"group": dict(NO_PLAIN)}, "bias": 1}
    right_before = right(state, cuts, rank)
    report = fs.load(state, folder / name, strict="exact")
    return {
        "right before": right_before,
        "wrong": wrong(state, cuts, rank),
        "plain": state["optimizer"]["group"] == PLAIN and state["bias"] is None,
        "lists": [*report.missing, *report.unexpected, *report.mismatched],
    }


def reshard(source: int, target: int) -> dict[str, Any]:
    """From memory to memory, under the layouts of two turns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    cuts = layout(world, target)
    state = state_of(cuts, rank, inverted) | {"step": 0}
    right_before = right(state, cuts, rank)
    fs.reshard(state_of(layout(world, source), rank) | {"step": 7}, state, budget_nbytes=1 << 10)
    return {"right before": right_before, "wrong": wrong(state, cuts, rank), "step": state["step"]}


def right(state: Mapping[str, Any], cuts: Sequence[Cut], rank: int) -> list[str]:
    """The names of which the rank holds something, all of it right."""
    held = {cut.key for cut in cuts if any(share.size for share in cut.ranks[rank])}
    return sorted(held.difference(wrong(state, cuts, rank)))


def dist_tensors(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    mesh = dist.ProcessMesh(list(range(dist.get_world_size())), dim_names=["x"])
    whole = paddle.to_tensor(values)
    return {
        "rows": dist.shard_tensor(whole, mesh, [dist.Shard(0)]),
        "columns": dist.shard_tensor(whole, mesh, [dist.Shard(1)]),
        "copies": dist.shard_tensor(whole, mesh, [dist.Replicate()]),
    }


def save_dist_tensors(folder: Path) -> list[str]:
    saved = fs.save({"model": dist_tensors(GRID)}, folder / "dist").result()
    return sorted({str(chunk.box) for chunk in saved["model.columns"].chunks})


def load_dist_tensors(folder: Path) -> dict[str, list[bool]]:
    """Into plain tensors, and into DistTensors on the mesh of more ranks."""
    plain = {"model": {name: paddle.zeros(GRID.shape) for name in dist_tensors(GRID)}}
    fs.load(plain, folder / "dist")
    cut = {"model": dist_tensors(-GRID)}
    fs.load(cut, folder / "dist")
    return {
        "plain": [bits_of(tensor) == GRID.tobytes() for tensor in plain["model"].values()],
        "cut": [
            bits_of(held._local_value()) == bits_of(want._local_value())
            for held, want in zip(cut["model"].values(), dist_tensors(GRID).values(), strict=True)
        ],
    }


def save_data_parallel(folder: Path) -> dict[str, int]:
    """Plain models and optimizers, the same on every rank; each tensor is stored once."""
    saved = fs.save({name: trained(name).state() for name in OPTIMIZERS}, folder / "data-parallel").result()
    return {"tensors": len(saved), "chunks": len(saved.manifest.chunks)}


def load_data_parallel(folder: Path) -> dict[str, Any]:
    """Models that were trained longer on other data become those that were saved; then both train on alike."""
    jobs = {name: trained(name, data=2, steps=5) for name in OPTIMIZERS}
    saved = {name: trained(name) for name in OPTIMIZERS}
    right_before = [name for name, job in jobs.items() if job.weights() == saved[name].weights()]
    state = {name: job.state() for name, job in jobs.items()}
    fs.load(state, folder / "data-parallel")
    for name, job in jobs.items():
        job.resume(state[name])
        job.step(data=3)
        saved[name].step(data=3)
    return {
        "right before": right_before,
        "wrong": [name for name, job in jobs.items() if job.weights() != saved[name].weights()],
    }


def only_rank_0_saves(folder: Path) -> dict[str, Any]:
    """Rank 0 saves alone and gives up; afterwards all ranks save together."""
    rank, gave_up = dist.get_rank(), folder / "gave-up"
    outcome: dict[str, Any] = {}
    if rank == 0:
        outcome = error_of(lambda: fs.save({"w": GRID}, folder / "alone", group=PaddleGroup(timeout=PATIENCE)))
        gave_up.touch()
    while not gave_up.exists():
        time.sleep(0.05)
    outcome["after"] = len(fs.save({"w": GRID}, folder / "together").result())
    return outcome


def one_rank_cannot_describe(folder: Path) -> dict[str, Any]:
    state = {"layer": {"w": GRID if dist.get_rank() == 0 else object()}}
    return error_of(lambda: fs.save(state, folder / "undescribed"))


def one_rank_cannot_write(folder: Path) -> dict[str, Any]:
    """Its disk is full; nothing is published."""
    rank, target = dist.get_rank(), folder / "unwritten"
    fs.register_backend(
        "full", lambda url: FaultyStore(LocalStore(target), 1, dead=True) if rank else LocalStore(target)
    )
    state = {"w": fs.shard_weight("w", paddle.to_tensor(GRID), 0, rank, dist.get_world_size())}
    outcome = error_of(lambda: fs.save(state, "full://disk"))
    dist.barrier()
    return outcome | {"after": error_of(lambda: fs.open_checkpoint(target), CheckpointNotFoundError)["type"]}


def replicas_differ(folder: Path) -> dict[str, Any]:
    """A tensor that is said to be the same on all ranks, and is not; it is large, so that all ranks write a part."""
    tensor = paddle.full([3, 1 << 20], 0.5)
    tensor[1, dist.get_rank()] = 1.0
    return error_of(lambda: fs.save({"expert.0": tensor}, folder / "differing"))


def some_ranks_save(folder: Path) -> list[int] | None:
    """A group of ranks 1 and 3 saves, while the others do something else."""
    members = [1, 3]
    group = dist.new_group(members)
    rank = dist.get_rank()
    if rank not in members:
        return None
    position = members.index(rank)
    part = paddle.to_tensor(np.array_split(GRID, 2)[position])
    weight = fs.shard_weight("w", part, 0, position, 2, global_dim=len(GRID), offset=4 * position)
    saved = fs.save({"w": weight}, folder / "some", group=group).result()
    return [saved.manifest.world_size, int(saved["w"].read().sum())]


def error_of(call: Callable[[], object], kind: type[FlexstoreError] = FlexstoreError) -> dict[str, Any]:
    """The error that a call must raise: its class, and what it knows about the place."""
    try:
        call()
    except kind as error:
        places = {name: getattr(error, name, None) for name in ("key", "rank", "step", "absent")}
        return {"type": type(error).__name__, **places}
    return {"type": None}


def scenarios(folder: Path) -> Mapping[str, Callable[[], Any]]:
    return {
        2: {
            "save": lambda: save_state(folder, "two", 0),
            "save DistTensors": lambda: save_dist_tensors(folder),
            "save data parallel": lambda: save_data_parallel(folder),
            "only rank 0": lambda: only_rank_0_saves(folder),
            "cannot describe": lambda: one_rank_cannot_describe(folder),
            "cannot write": lambda: one_rank_cannot_write(folder),
            "replicas differ": lambda: replicas_differ(folder),
        },
        4: {
            "load": lambda: load_state(folder, "two", 1),
            "save": lambda: save_state(folder, "four", 2),
            "load DistTensors": lambda: load_dist_tensors(folder),
            "load data parallel": lambda: load_data_parallel(folder),
            "some ranks": lambda: some_ranks_save(folder),
        },
        3: {
            "load": lambda: load_state(folder, "four", 3),
            "load from two": lambda: load_state(folder, "two", 4),
            "reshard": lambda: reshard(4, 5),
            "reshard back": lambda: reshard(5, 0),
        },
    }[dist.get_world_size()]


def main(folder: Path) -> None:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    outcomes = {name: scenario() for name, scenario in scenarios(folder).items()}
    dist.barrier()  # the store through which all meet ends with rank 0
    outcomes["fleet"] = getattr(dist.fleet.fleet, "_role_maker", None) is not None
    (folder / f"{dist.get_world_size()}-{dist.get_rank()}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
