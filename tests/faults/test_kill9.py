"""X5 and D12: processes that save are killed by SIGKILL, again and again, at moments that nothing in them chooses.

After each kill the checkpoint is whole, of one step, and of no older step than the last one whose save had returned.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import flexstore as fs
from flexstore.errors import CheckpointNotFoundError
from tests.faults.endless_saver import tensors

ROOT = Path(__file__).parents[2]
SAVER = Path(__file__).with_name("endless_saver.py")
PADDLE = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"]


@dataclass(frozen=True)
class Savers:
    """A job that saves without end.

    Attributes:
        process: the one process, or the launcher of the ranks.
        told: the file in which the ranks tell what they have done.
        world: number of ranks.
    """

    process: subprocess.Popen[bytes]
    told: Path
    world: int

    def numbers(self, word: str) -> list[int]:
        """What follows a word in the finished lines of the file."""
        lines = self.told.read_text().split("\n")[:-1]
        return [int(line.split()[1]) for line in lines if line.startswith(word)]

    def run(self, saves: int) -> float:
        """Let it save some times; seconds per save."""
        while len(self.numbers("pid")) < self.world or len(self.numbers("saved")) == 0:
            self._breathe()
        start, before = time.perf_counter(), len(self.numbers("saved"))
        while (done := len(self.numbers("saved")) - before) < saves:
            self._breathe()
        return (time.perf_counter() - start) / done

    def kill(self, order: Sequence[int], pause: float) -> None:
        """Kill the ranks in an order, with a pause of some seconds between them; return when all are dead."""
        pids = self.numbers("pid")
        for number, rank in enumerate(order):
            time.sleep(pause if number else 0)
            with suppress(ProcessLookupError):  # the launcher ends the others when one has died
                os.kill(pids[rank], signal.SIGKILL)
        with self.told.open("rb") as told:
            fcntl.flock(told, fcntl.LOCK_EX)

    def _breathe(self) -> None:
        assert self.process.poll() is None, "the savers ended by themselves"
        time.sleep(0.002)


@contextmanager
def savers(folder: Path, mode: str, *, paddle: bool = False) -> Iterator[Savers]:
    """Start a job; nothing of it is alive afterwards."""
    told = folder / "told"
    told.write_bytes(b"")
    script = [str(SAVER), mode, str(folder / "checkpoint"), str(told)]
    command = [*PADDLE, str(folder / "logs"), *script, "paddle"] if paddle else script
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PADDLE_DISTRI_BACKEND": "gloo", "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Savers(process, told, 2 if paddle else 1)
    finally:
        process.terminate()
        process.wait()


def step_of(folder: Path) -> int:
    """The one step to which all of a checkpoint belongs, every byte of it checked."""
    checkpoint = fs.open_checkpoint(folder)
    checkpoint.verify()
    step = int(checkpoint.common["step"])
    assert checkpoint.common["nested.step"] == step
    assert set(checkpoint) == set(tensors(step))
    for key, values in tensors(step).items():
        np.testing.assert_array_equal(checkpoint[key].read(), values, key)
    return step


@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_x5_d12_a_kill_leaves_the_old_or_the_new_checkpoint_whole(kills: int, tmp_path: Path) -> None:
    moments = random.Random(kills)
    for _ in range(kills):
        with savers(tmp_path, "overwrite") as job:
            seconds = job.run(moments.randint(1, 3))
            time.sleep(moments.uniform(0, 2 * seconds))
            job.kill([0], 0)
        returned = job.numbers("saved")[-1]
        assert returned <= step_of(tmp_path / "checkpoint") <= returned + 1


@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_x5_a_killed_first_save_leaves_a_whole_checkpoint_or_none(kills: int, tmp_path: Path) -> None:
    moments = random.Random(kills)
    for kill in range(kills):
        folder = tmp_path / str(kill)
        folder.mkdir()
        with savers(folder, "fresh") as job:
            seconds = job.run(moments.randint(1, 3))
            time.sleep(moments.uniform(0, 2 * seconds))
            job.kill([0], 0)
        returned = job.numbers("saved")
        assert [step_of(folder / "checkpoint" / str(step)) for step in returned] == returned
        with suppress(CheckpointNotFoundError):
            assert step_of(folder / "checkpoint" / str(returned[-1] + 1)) == returned[-1] + 1


@pytest.mark.distributed
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_x5_d12_a_killed_job_of_paddle_leaves_the_old_or_the_new_checkpoint_whole(kills: int, tmp_path: Path) -> None:
    """Its ranks die together, or one after the other."""
    moments = random.Random(kills)
    for _ in range(kills):
        with savers(tmp_path, "overwrite", paddle=True) as job:
            seconds = job.run(moments.randint(1, 3))
            time.sleep(moments.uniform(0, 2 * seconds))
            job.kill(moments.sample([0, 1], 2), moments.choice([0, seconds]))
        returned = job.numbers("saved")[-1]
        assert returned <= step_of(tmp_path / "checkpoint") <= returned + 1
