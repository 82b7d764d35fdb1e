"""The process of one peer: obeys JSON lines on standard input, answers with JSON lines on standard output.

python -m benchmarks.worker "torch DCP" large
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import PEERS
from benchmarks.peers.base import Peer
from benchmarks.states import STATES, check, filled


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer prints is not an answer
    name, state = sys.argv[1:3]
    module, _, kind = PEERS[name].partition(":")
    peer: Peer = getattr(importlib.import_module(module), kind)()
    shapes = STATES[state]()
    peer.hold(filled(shapes))
    print(json.dumps({"ready": name}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        path = Path(order["path"])
        if order["do"] == "save":
            answer = _measured(lambda path=path: peer.save(path))
        elif order["do"] == "load":
            peer.clear()
            answer = _measured(lambda path=path: peer.load(path))
            if order.get("check"):
                check(peer.arrays(), shapes)
        else:
            break
        print(json.dumps(answer), file=answers, flush=True)


def _measured(work: Callable[[], None]) -> dict[str, float]:
    """Seconds, and the peak of resident memory above what was resident before, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "extra_nbytes": max(0, _status("VmHWM") - before)}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


if __name__ == "__main__":
    main()
