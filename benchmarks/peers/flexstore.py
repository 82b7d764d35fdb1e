"""flexstore, checksums on, as a user calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flexstore as fs
from benchmarks.peers.base import Peer
from benchmarks.states import Arrays


class FlexstoreDistcp(Peer):
    """numpy arrays, the default strategy."""

    strategy = "distcp"

    def hold(self, arrays: Arrays) -> None:
        self._state: dict[str, Any] = dict(arrays)

    def arrays(self) -> Arrays:
        return self._state

    def save(self, path: Path) -> None:
        fs.save(self._state, path, strategy=self.strategy)

    def load(self, path: Path) -> None:
        fs.load(self._state, path)


class FlexstoreSafetensors(FlexstoreDistcp):
    strategy = "safetensors"


class FlexstorePaddle(FlexstoreDistcp):
    """The same with Paddle tensors."""

    def hold(self, arrays: Arrays) -> None:
        import paddle

        self._state = {name: paddle.to_tensor(array) for name, array in arrays.items()}

    def arrays(self) -> Arrays:
        import numpy as np

        return {name: np.from_dlpack(tensor) for name, tensor in self._state.items()}
