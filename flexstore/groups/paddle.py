"""`PaddleGroup`: the ranks of a `paddle.distributed` group.

Promises: works over gloo on hosts without any device as well as over the device backends, and needs no fleet, only
`paddle.distributed.init_parallel_env`. Only this file of the package imports paddle.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import paddle.distributed as dist
from paddle.base import core

from flexstore.groups.arrival import RendezvousStore
from flexstore.groups.framework import PIECE, FrameworkGroup
from flexstore.groups.nodelay import send_at_once
from flexstore.groups.pairwise import Meeting
from flexstore.groups.wire import pack, unpack

Bytes = npt.NDArray[np.uint8]


class PaddleGroup(FrameworkGroup):
    """One rank's end of a group of `paddle.distributed`; see `FrameworkGroup`."""

    framework = "paddle"
    initialiser = "paddle.distributed.init_parallel_env"

    @classmethod
    def initialised(cls) -> bool:
        return bool(dist.is_initialized())

    @classmethod
    def accepts(cls, native: object) -> bool:
        return isinstance(native, dist.communication.group.Group)

    def _join(self, group: Any) -> tuple[RendezvousStore, Sequence[int], int]:
        self._group = dist.get_group() if group is None else group
        return _store(), self._group.ranks, dist.get_rank()

    def _gather(self, payload: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        dist.all_gather_object(payloads, payload, group=self._group)
        return payloads

    def _transfer(self, plan: list[Meeting]) -> None:
        """As for every framework, but over gloo all ranks take part in every message.

        Paddle numbers the messages of a gloo group by a counter in each process. A message from rank to rank moves the
        counters of these two only, so that among three ranks the next one is never matched; a scatter moves them all.
        """
        if self._group.backend != "GLOO":
            super()._transfer(plan)
            return
        outgoing = {meeting.peer: _joined(meeting.sends) for meeting in plan}
        incoming = {meeting.peer: np.empty(sum(a.size for a in meeting.receives), np.uint8) for meeting in plan}
        own = {peer: data.size for peer, data in outgoing.items()}
        for source, sizes in enumerate(unpack(payload) for payload in self._gather(pack(own))):
            self._scatter(source, max(sizes.values(), default=0), outgoing, incoming.get(source, _NOTHING))
        for meeting in plan:
            stops = np.cumsum([buffer.size for buffer in meeting.receives])
            for buffer, stop in zip(meeting.receives, stops, strict=True):
                buffer[...] = incoming[meeting.peer][stop - buffer.size : stop]

    def _scatter(self, source: int, longest: int, outgoing: dict[int, Bytes], incoming: Bytes) -> None:
        """Fill ``incoming`` from rank ``source``, which has at most ``longest`` bytes for any one rank."""
        step = PIECE // self.size
        for start in range(0, longest, step):
            width = min(step, longest - start)
            blocks = np.zeros((self.size, width), np.uint8)
            for peer, data in outgoing.items() if source == self.rank else ():
                blocks[peer, : data[start : start + width].size] = data[start : start + width]
            block = paddle.empty([width], dtype="uint8")
            sent = paddle.to_tensor(blocks.ravel()) if source == self.rank else None
            dist.stream.scatter(block, sent, src=self._ranks[source], group=self._group)
            part = incoming[start : start + width]
            part[...] = block.numpy()[: part.size]

    def _send(self, piece: Bytes, peer: int) -> None:
        dist.send(paddle.to_tensor(piece), dst=peer, group=self._group)

    def _receive(self, piece: Bytes, peer: int) -> None:
        tensor = paddle.empty([piece.size], dtype="uint8")
        dist.recv(tensor, src=peer, group=self._group)
        piece[...] = tensor.numpy()


_NOTHING = np.empty(0, np.uint8)


def _joined(arrays: list[Bytes]) -> Bytes:
    return np.concatenate([_NOTHING, *arrays])


@cache
def _store() -> RendezvousStore:
    """A connection of our own to the store that paddle.distributed has started from; one per process, for its life."""
    host, _, port = _store_address().rpartition(":")
    with send_at_once():
        # No workers to wait for: they have all been there to start.
        store: RendezvousStore = core.TCPStore(host, int(port), is_master=False, world_size=0)
    return store


def _store_address() -> str:
    """Where the store is, by the variables from which Paddle itself takes it, in the same order."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host and port:
        return f"{host}:{port}"
    return os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
