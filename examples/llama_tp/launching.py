"""Start training processes with Paddle's own launcher, follow what they report, and kill them without mercy."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from events import EventReader

POLL_SECONDS = 0.05
SILENCE_SECONDS = 120.0
LOG_LINES = 25


class LaunchError(RuntimeError):
    """The processes failed, or fell silent."""


class Launch:
    """One run of ``train.py`` on some processes; none of them outlives the ``with`` block.

    Args:
        folder: for logs and events; made here.
        processes: how many to start.
        arguments: for ``train.py``.
    """

    def __init__(self, folder: Path, processes: int, arguments: Iterable[str]) -> None:
        folder.mkdir(parents=True)
        events = folder / "events.jsonl"
        self._logs = folder / "logs"
        self._reader = EventReader(events)
        self._workers: list[int] = []
        self._killed = False
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes), "--log_dir", str(self._logs)]
        script = [str(Path(__file__).with_name("train.py")), "--events", str(events), *arguments]
        self._launcher_log = folder / "launcher.log"
        with self._launcher_log.open("wb") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, *launcher, *script], stdout=log, stderr=subprocess.STDOUT, env=_environment()
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._launcher.poll() is None:
            self.kill()
        self._reader.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """What the processes report, until they have ended or were killed.

        Raises:
            LaunchError: they ended with an error, or reported nothing for two minutes.
        """
        last = time.monotonic()
        running = True
        while running:
            running = self._launcher.poll() is None
            for event in self._reader.poll():
                last = time.monotonic()
                if event["event"] == "started":
                    self._workers.append(event["pid"])
                yield event
            if time.monotonic() - last > SILENCE_SECONDS:
                raise LaunchError(f"no news for {SILENCE_SECONDS:.0f} s\n{self._last_words()}")
            time.sleep(POLL_SECONDS)
        if self._launcher.returncode and not self._killed:
            raise LaunchError(f"training ended with exit code {self._launcher.returncode}\n{self._last_words()}")

    def kill(self) -> None:
        """SIGKILL every training process, then end the launcher, which ends what it may have started since."""
        self._killed = True
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._launcher.terminate()
        self._launcher.wait()

    def _last_words(self) -> str:
        logs = [self._launcher_log, *sorted(self._logs.glob("workerlog.*"))]
        return "\n".join(f"--- {log}\n" + "\n".join(log.read_text().splitlines()[-LOG_LINES:]) for log in logs)


def _environment() -> dict[str, str]:
    """One thread per process; Paddle's launcher fails if this variable names fewer devices than processes."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
