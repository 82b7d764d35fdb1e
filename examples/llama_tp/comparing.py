"""Read a checkpoint with Paddle's own loader and with flexstore's reader, and compare every tensor bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import paddle
import paddle.distributed as dist

import flexstore as fs


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many tensors, chunks (pieces in the files) and bytes were compared, and which tensors differ."""

    tensors: int
    chunks: int
    nbytes: int
    different: tuple[str, ...]


def compare_with_paddle(folder: Path) -> Comparison:
    """Load all of a ``distcp`` checkpoint with ``paddle.distributed.load_state_dict``, and compare."""
    paddle.set_device("cpu")
    checkpoint = fs.open_checkpoint(folder)
    ours = {key: tensor.read() for key, tensor in checkpoint.items()}
    theirs = {key: paddle.zeros(array.shape, str(array.dtype)) for key, array in ours.items()}
    dist.load_state_dict(theirs, str(folder))
    different = tuple(key for key, array in ours.items() if array.tobytes() != theirs[key].numpy().tobytes())
    chunks = sum(len(tensor.chunks) for tensor in checkpoint.values())
    return Comparison(len(ours), chunks, sum(array.nbytes for array in ours.values()), different)
