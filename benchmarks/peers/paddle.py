"""Paddle's own flex checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loading

from benchmarks.peers.base import Peer, fsync_tree
from benchmarks.states import Arrays


class Paddle(Peer):
    def hold(self, arrays: Arrays) -> None:
        self._held = {name: paddle.to_tensor(array) for name, array in arrays.items()}

    def arrays(self) -> Arrays:
        return {name: np.from_dlpack(tensor) for name, tensor in self._held.items()}

    def save(self, path: Path) -> None:
        dist.save_state_dict(self._held, str(path))
        fsync_tree(path)

    def load(self, path: Path) -> None:
        loading.PATH_TO_CHECKPOINT_FILES.clear()  # it remembers directory listings
        dist.load_state_dict(self._held, str(path))
