"""The example trains, is killed in the middle of a save, and resumes on other numbers of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "llama_tp" / "run_demo.py"


@pytest.mark.distributed
def test_x5_a_killed_save_is_ignored_and_training_goes_on_under_another_layout(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DEMO), "--quick", "--keep", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        r"step +9 .* in the middle of the save: SIGKILL",
        r"ok: the torn step_000009 holds all \d files of the save and no flexstore\.json",
        r"ok: phase 2 began with step_000006 and ignored the torn step_000009",
        r"ok: phase 3 began with step_000018",
        r"ok: all 30 losses are those of the uninterrupted run",
        r"ok: paddle\.distributed\.load_state_dict reads step_000018 alike: \d+ tensors",
        r"all checks hold",
    ):
        assert re.search(told, done.stdout), f"{told} not found in:\n{done.stdout}"
