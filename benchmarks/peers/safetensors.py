"""The safetensors library: no checksums; it cannot load into memory that exists, which is left out in its favour."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file, save_file

from benchmarks.peers.base import Peer, fsync_tree
from benchmarks.states import Arrays


class Safetensors(Peer):
    def hold(self, arrays: Arrays) -> None:
        self._held = dict(arrays)

    def arrays(self) -> Arrays:
        return self._held

    def save(self, path: Path) -> None:
        path.mkdir(parents=True)
        save_file(self._held, path / "model.safetensors")
        fsync_tree(path)

    def load(self, path: Path) -> None:
        self._held = load_file(path / "model.safetensors")

    def clear(self) -> None:
        self._held = {}
