"""Save and load on local disk, all programs interleaved in one run.

Every program lives in its own process and holds its own state. In every round each saves once and loads twice: cold
(its files dropped from the page cache) and warm. The order rotates from round to round.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEASURES = ("save", "cold load", "warm load")


@dataclass
class Result:
    """Seconds of every repeat by measure, and the largest extra memory in bytes."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    extra_nbytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def median(self, measure: str) -> float:
        return statistics.median(self.seconds[measure])


class Worker:
    """A peer's process."""

    def __init__(self, name: str, state: str) -> None:
        self.name = name
        environment = os.environ | {"OMP_NUM_THREADS": "2", "JAX_PLATFORMS": "cpu", "GLOG_minloglevel": "3"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", name, state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()

    def order(self, do: str, path: Path, check: bool = False) -> dict[str, float]:
        assert self._process.stdin is not None
        print(json.dumps({"do": do, "path": str(path), "check": check}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of '{self.name}' ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run(names: list[str], state: str, repeats: int, root: Path) -> dict[str, Result]:
    """Measure the named peers; the first round warms up and is not counted."""
    workers = [Worker(name, state) for name in names]
    results = {name: Result() for name in names}
    try:
        for number in range(repeats + 1):
            shift = number % len(workers)
            for worker in workers[shift:] + workers[:shift]:
                _round(worker, results[worker.name], number, root)
                print(f"  round {number}/{repeats}: {worker.name}", flush=True)
    finally:
        for worker in workers:
            worker.close()
    return results


def _round(worker: Worker, result: Result, number: int, root: Path) -> None:
    path = root / f"{worker.name.replace(' ', '_')}-{number}"
    try:
        answers = {"save": worker.order("save", path)}
        _drop_cache(path)
        answers["cold load"] = worker.order("load", path, check=number == 0)
        answers["warm load"] = worker.order("load", path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    if number:
        for measure, answer in answers.items():
            result.seconds[measure].append(answer["seconds"])
            result.extra_nbytes[measure] = max(result.extra_nbytes[measure], int(answer["extra_nbytes"]))


def _drop_cache(path: Path) -> None:
    for folder, _, files in os.walk(path):
        for file in files:
            fd = os.open(os.path.join(folder, file), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
