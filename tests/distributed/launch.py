"""Real jobs of several processes on this host, started by the framework's own launcher.

Every rank's output is kept; what ranks want to tell beyond that they write to a folder that the test names in ``args``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch_paddle(
    script: str | Path,
    nproc: int,
    args: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> list[str]:
    """Run a script on ``nproc`` ranks with ``paddle.distributed.launch``, over gloo on the CPU.

    Args:
        script: a file, or the source itself as a str.
        nproc: number of ranks.
        args: what the script finds in ``sys.argv[1:]``.
        env: variables to add.
        timeout: seconds after which the job is killed.

    Returns:
        The output of each rank.

    Raises:
        AssertionError: the job failed or took too long; the message has the ends of all outputs.
    """

    def command(logs: Path) -> list[str]:
        return ["paddle.distributed.launch", "--nproc_per_node", str(nproc), "--log_dir", str(logs)]

    added = {"PADDLE_DISTRI_BACKEND": "gloo", **(env or {})}
    return _launch(command, lambda logs, rank: [logs / f"workerlog.{rank}"], script, nproc, args, added, timeout)


def launch_torch(
    script: str | Path,
    nproc: int,
    args: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> list[str]:
    """Run a script on ``nproc`` ranks with torchrun; otherwise as `launch_paddle`."""

    def command(logs: Path) -> list[str]:
        options = ["--standalone", "--nproc-per-node", str(nproc), "--log-dir", str(logs), "--redirects", "3"]
        return ["torch.distributed.run", *options]

    return _launch(
        command,
        lambda logs, rank: sorted(logs.glob(f"*/attempt_0/{rank}/*.log")),
        script,
        nproc,
        args,
        env or {},
        timeout,
    )


def _launch(
    command: Callable[[Path], list[str]],
    outputs_of: Callable[[Path, int], list[Path]],
    script: str | Path,
    nproc: int,
    args: Sequence[object],
    env: Mapping[str, str],
    timeout: float,
) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="flexstore-launch-") as name:
        folder = Path(name)
        logs = folder / "logs"
        logs.mkdir()
        if isinstance(script, str):
            source = folder / "script.py"
            source.write_text(textwrap.dedent(script))
            script = source
        job = [sys.executable, "-m", *command(logs), str(script), *map(str, args)]
        status, launcher = _run(job, folder, _environment(env), timeout)
        outputs = ["".join(_text(path) for path in outputs_of(logs, rank)) for rank in range(nproc)]
    if status != 0:
        tails = "".join(f"\n--- rank {rank} ---\n{output[-4000:]}" for rank, output in enumerate(outputs))
        raise AssertionError(
            f"the job {status if status else 'ended badly'}:{tails}\n--- launcher ---\n{launcher[-4000:]}"
        )
    return outputs


def _run(job: list[str], folder: Path, env: dict[str, str], timeout: float) -> tuple[int | str, str]:
    """Run the launcher; its exit status, or the words for why there is none, and its output."""
    with (folder / "launcher.log").open("w+") as log:
        process = subprocess.Popen(job, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            status: int | str = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = f"took more than {timeout} s"
        finally:
            _stop(process)
        log.seek(0)
        return status, log.read()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the launcher so that it ends its ranks, which have sessions of their own; then whatever is left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "MASTER_"))}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **added}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
