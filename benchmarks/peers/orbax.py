"""Orbax with its defaults (OCDBT, zarr chunks, no fsync of its own)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from benchmarks.peers.base import Peer, fsync_tree
from benchmarks.states import Arrays


class Orbax(Peer):
    def hold(self, arrays: Arrays) -> None:
        self._held = dict(arrays)

    def arrays(self) -> Arrays:
        return self._held

    def save(self, path: Path) -> None:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(self._held))
        fsync_tree(path)

    def load(self, path: Path) -> None:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            self._held = checkpointer.restore(path.absolute())

    def clear(self) -> None:
        self._held = {name: np.empty(0, np.float32) for name in self._held}
