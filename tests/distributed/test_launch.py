"""The launcher of the distributed tests tells what went wrong in a job, and ends jobs that do not end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.distributed


def test_each_ranks_output_is_returned(paddle_launch: Callable[..., list[str]]) -> None:
    outputs = paddle_launch("import os, sys; print('rank', os.environ['PADDLE_TRAINER_ID'], sys.argv[1])", 2, ["hello"])
    assert [f"rank {rank} hello" in output for rank, output in enumerate(outputs)] == [True, True]


def test_a_failed_job_raises_with_the_outputs(paddle_launch: Callable[..., list[str]]) -> None:
    with pytest.raises(AssertionError, match="no such luck"):
        paddle_launch("raise SystemExit('no such luck')", 2)


def test_a_job_that_hangs_is_killed(torch_launch: Callable[..., list[str]]) -> None:
    with pytest.raises(AssertionError, match="took more than"):
        torch_launch("import threading; threading.Event().wait()", 1, timeout=4)
