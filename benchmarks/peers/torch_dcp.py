"""torch.distributed.checkpoint with two threads and its own fsync."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.peers.base import Peer, fsync_tree
from benchmarks.states import Arrays


class TorchDcp(Peer):
    def hold(self, arrays: Arrays) -> None:
        self._held = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self) -> Arrays:
        return {name: tensor.numpy() for name, tensor in self._held.items()}

    def save(self, path: Path) -> None:
        writer = dcp.FileSystemWriter(path, thread_count=2, sync_files=True, single_file_per_rank=True)
        dcp.save(self._held, storage_writer=writer, no_dist=True)
        fsync_tree(path)

    def load(self, path: Path) -> None:
        dcp.load(self._held, storage_reader=dcp.FileSystemReader(path), no_dist=True)
