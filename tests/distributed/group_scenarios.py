"""What the ranks of a real job do to show that their group keeps its contract; a JSON file per rank tells the outcome.

Started by the tests beside it: ``group_scenarios.py paddle|torch FOLDER``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flexstore.errors import FlexstoreError, InvalidStateError, KeyCollisionError
from flexstore.groups.coordinator import Coordinator
from flexstore.groups.framework import FrameworkGroup
from flexstore.groups.resolve import resolve_group

PATIENCE = 2.0
"""Seconds after which the rank that is left alone gives up."""

KEPT: list[Any] = []
"""Stores of groups, which live as long as the process."""


def start(framework: str) -> tuple[Callable[[list[int]], Any], Callable[..., FrameworkGroup]]:
    """Initialise the framework; how it makes a group of its own, and our class for it."""
    if framework == "paddle":
        import paddle.distributed as dist

        dist.init_parallel_env()
        from flexstore.groups.paddle import PaddleGroup

        return new_paddle_group, PaddleGroup
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    from flexstore.groups.torch import TorchGroup

    return torch.distributed.new_group, TorchGroup


def new_paddle_group(ranks: list[int]) -> Any:
    """A gloo group of some ranks, made through a store of its own.

    Paddle 3.3 uses the same keys for all gloo groups, so that a rank of a second one may find an address of the first.
    """
    from paddle.base import core
    from paddle.distributed import collective, new_group

    group = resolve_group()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = group.all_gather("port", server.getsockname()[1])[0]
    if group.rank == 0:
        KEPT.append(core.TCPStore("127.0.0.1", port, is_master=True, world_size=0))
    group.all_gather("store is up", None)
    if group.rank > 0:
        KEPT.append(core.TCPStore("127.0.0.1", port, is_master=False, world_size=0))
    usual = collective._default_store
    collective._default_store = KEPT[-1]
    try:
        return new_group(ranks)
    finally:
        collective._default_store = usual


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    try:
        call()
    except FlexstoreError as error:
        known = {name: getattr(error, name, None) for name in ("rank", "step", "absent")}
        return {"type": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", []), **known}
    return {"type": None}


def exchange_all(group: Any, nbytes: int) -> bool:
    """Every pair swaps two messages each way, one of them empty; True if every byte arrived."""

    def message(source: int, target: int) -> Any:
        return np.full(nbytes + source, 16 * source + target, np.uint8)

    peers = [peer for peer in range(group.size) if peer != group.rank]
    nothing = np.empty(0, np.uint8)
    received = [(peer, np.zeros(nbytes + peer, np.uint8)) for peer in peers]
    sends = [(peer, data) for peer in peers for data in (nothing, message(group.rank, peer))]
    receives = [(peer, data) for peer, buffer in received for data in (nothing.copy(), buffer)]
    group.exchange("swap", sends, receives)
    return all(np.array_equal(buffer, message(peer, group.rank)) for peer, buffer in received)


def one_way(group: Any) -> list[int]:
    """Rank 0 sends read-only bytes to the last rank; the others have nothing to do."""
    data = np.frombuffer(bytes(range(200)), np.uint8)
    buffer = np.zeros(200, np.uint8)
    last = group.size - 1
    group.exchange("one way", [(last, data)] * (group.rank == 0), [(0, buffer)] * (group.rank == last))
    return [int(buffer.sum())]


def alone(group_of: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """Rank 0 calls a step that the others do not call; when it has given up, all call the next one."""
    done = folder / "gave-up"
    outcome: dict[str, Any] = {}
    if group_of().rank == 0:
        outcome = error_of(lambda: group_of(timeout=PATIENCE).all_gather("save", None))
        done.touch()
    while not done.exists():
        time.sleep(0.05)
    outcome["after"] = group_of().all_gather("next", group_of().rank)
    return outcome


def fail_on_last(ranks: Coordinator) -> None:
    if ranks.rank == ranks.size - 1:
        raise KeyCollisionError("two values", key="w")


def fail_everywhere(ranks: Coordinator) -> None:
    raise InvalidStateError("no good") if ranks.rank else ZeroDivisionError("no number")


def subgroup(native: Any, group_of: Callable[..., Any], members: list[int], me: int) -> Any:
    if me not in members:
        return error_of(lambda: group_of(native))
    group = resolve_group(native)
    return [group.rank, group.size, group.all_gather("sub", me), exchange_all(group, 1000)]


def scenarios(framework: str, folder: Path) -> dict[str, Any]:
    new_group, group_of = start(framework)
    group = resolve_group()
    ranks = Coordinator(group)
    me, last = group.rank, group.size - 1
    members = [rank for rank in range(group.size) if rank != 1] if group.size > 2 else [0, 1]
    outcome = {
        "class": type(group).__name__,
        "rank": [me, group.size],
        "alone": alone(group_of, folder),
        "gather": group.all_gather("gather", {"rank": me, "padding": "x" * 1000 * me}),
        "interleaved": [g.all_gather("both", me) for g in (group_of(), group, group_of())],
        "swap": exchange_all(group, 100_000),
        "one way": one_way(group),
        "no peer": error_of(lambda: group.exchange("bad", [(me, np.zeros(1, np.uint8))], [])),
        "other names": error_of(lambda: group.all_gather("a" if me == 0 else "b", None)),
        "subgroup": subgroup(new_group(members), group_of, members, me),
        "of one": [group_of(native).all_gather("solo", me) for native in [new_group([last])] if me == last],
        "error on last": error_of(lambda: ranks.step("plan", lambda: fail_on_last(ranks))),
        "errors": error_of(lambda: ranks.step("plan", lambda: fail_everywhere(ranks))),
        "unpicklable": error_of(lambda: ranks.step("plan", lambda: (lambda: None) if me == last else None)),
        "coordinator": ranks.on_coordinator("open", lambda: ["from", group.rank]),
        "modules": sorted({"paddle", "torch"} & sys.modules.keys()),
        "fleet": _fleet_initialised(),
    }
    group.all_gather("end", None)  # nobody leaves while another still needs it
    return outcome


def _fleet_initialised() -> bool:
    fleet = sys.modules.get("paddle.distributed.fleet")
    return fleet is not None and getattr(fleet.fleet, "_role_maker", None) is not None


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    outcome = scenarios(sys.argv[1], folder)
    (folder / f"{outcome['rank'][0]}.json").write_text(json.dumps(outcome))
    # Taking the groups down in the usual way now and then aborts a process ("terminate called without an active
    # exception", once in some ten runs of torch over gloo). All that is tested here has happened.
    sys.stdout.flush()
    os._exit(0)
