"""`TorchGroup`: the ranks of a `torch.distributed` group.

Promises: works over gloo on hosts without any device as well as over nccl, and needs only
`torch.distributed.init_process_group`. Only this file of the package imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from flexstore.groups.arrival import RendezvousStore
from flexstore.groups.framework import FrameworkGroup


class TorchGroup(FrameworkGroup):
    """One rank's end of a group of `torch.distributed`; see `FrameworkGroup`."""

    framework = "torch"
    initialiser = "torch.distributed.init_process_group"

    @classmethod
    def initialised(cls) -> bool:
        return bool(dist.is_available() and dist.is_initialized())

    @classmethod
    def accepts(cls, native: object) -> bool:
        return dist.is_available() and (
            isinstance(native, dist.ProcessGroup) or native == dist.GroupMember.NON_GROUP_MEMBER
        )

    def _join(self, group: Any) -> tuple[RendezvousStore, Sequence[int], int]:
        self._group = dist.group.WORLD if group is None else group
        store: RendezvousStore = distributed_c10d._get_default_store()
        if dist.get_rank(self._group) < 0:
            return store, (), dist.get_rank()
        on_host = "cpu:" in distributed_c10d.get_backend_config(self._group)
        self._device = torch.device("cpu" if on_host else "cuda")
        return store, dist.get_process_group_ranks(self._group), dist.get_rank()

    def _gather(self, payload: bytes) -> list[bytes]:
        payloads: list[Any] = [None] * self.size
        dist.all_gather_object(payloads, payload, group=self._group)
        return payloads

    def _send(self, piece: npt.NDArray[np.uint8], peer: int) -> None:
        dist.send(torch.from_numpy(piece.copy()).to(self._device), dst=peer, group=self._group)

    def _receive(self, piece: npt.NDArray[np.uint8], peer: int) -> None:
        tensor = torch.empty(piece.size, dtype=torch.uint8, device=self._device)
        dist.recv(tensor, src=peer, group=self._group)
        piece[...] = tensor.cpu().numpy()
