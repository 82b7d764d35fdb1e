"""Where checkpoints lie, and which one to continue from."""

from __future__ import annotations

from pathlib import Path

import flexstore as fs
from flexstore.errors import CheckpointNotFoundError


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` steps lives."""
    return root / f"step_{step:06d}"


def newest_checkpoint(root: Path) -> tuple[Path | None, list[Path]]:
    """The newest folder that holds a checkpoint (None if there is none), and the newer ones that do not."""
    ignored: list[Path] = []
    for folder in sorted(root.glob("step_*"), reverse=True):
        try:
            fs.open_checkpoint(folder)
        except CheckpointNotFoundError:
            ignored.append(folder)
        else:
            return folder, ignored
    return None, ignored
