"""One state, cut over any number of ranks in each way that training cuts tensors. No framework.

`layout` gives the same names, shapes, dtypes and contents for every number of ranks and every turn; only the cuts
differ. So whatever is saved under one layout can be loaded under any other and compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.testing import Cut, Share

DTYPE_NAMES = tuple(name for name in DTYPES if name not in ("uint16", "uint32", "uint64"))
"""Those that Paddle has, too."""

SHAPES = ((), (7,), (5, 9), (3, 5, 7), (2, 6, 3, 4))

Ranks: TypeAlias = tuple[tuple[Share, ...], ...]


def layout(world: int, turn: int) -> list[Cut]:
    """Every dtype in every shape; ``turn`` chooses, in a circle of six, which of them are cut in which way.

    A rank has at most one share of a tensor.
    """
    kinds = enumerate(product(DTYPE_NAMES, SHAPES))
    return [
        Cut(f"{name}.{len(shape)}d", shape, DTYPES[name], CUTTERS[(number + turn) % len(CUTTERS)](shape, world))
        for number, (name, shape) in kinds
    ]


def uneven(size: int, parts: int) -> list[tuple[int, int]]:
    """``[0, size)`` in parts that grow; the first ones of a small size are empty or have one element."""
    return list(pairwise(size * i * i // (parts * parts) for i in range(parts + 1)))


def replicated(shape: tuple[int, ...], world: int) -> Ranks:
    return ((Share(Box.whole(shape)),),) * world


def on_last_rank(shape: tuple[int, ...], world: int) -> Ranks:
    """As an expert, or a layer of another pipeline stage."""
    return ((),) * (world - 1) + ((Share(Box.whole(shape)),),)


def rows(shape: tuple[int, ...], world: int) -> Ranks:
    return tuple((Share(block),) for block in _blocks(shape, 0, world))


def columns(shape: tuple[int, ...], world: int) -> Ranks:
    return tuple((Share(block),) for block in _blocks(shape, -1, world))


def flattened(shape: tuple[int, ...], world: int) -> Ranks:
    """As in sharding V2: every rank has a range of the whole tensor."""
    return tuple((Share(Box.whole(shape), held),) for held in uneven(math.prod(shape), world))


def flattened_columns(shape: tuple[int, ...], world: int) -> Ranks:
    """Tensor parallel over two neighbours, and each part in ranges over the others (an odd world: over all)."""
    blocks = _blocks(shape, -1, 2 if shape and world % 2 == 0 else 1)
    sharding = world // len(blocks)
    cuts = [[Share(block, held) for held in uneven(block.size, sharding)] for block in blocks]
    return tuple((cuts[rank % len(blocks)][rank // len(blocks)],) for rank in range(len(blocks) * sharding))


CUTTERS: tuple[Callable[[tuple[int, ...], int], Ranks], ...] = (
    replicated,
    rows,
    columns,
    flattened,
    flattened_columns,
    on_last_rank,
)


def _blocks(shape: tuple[int, ...], axis: int, parts: int) -> list[Box]:
    """The parts of a shape along one axis; a tensor without axes is replicated."""
    if not shape:
        return [Box.whole(shape)] * parts
    blocks = []
    for start, stop in uneven(shape[axis], parts):
        offset, extent = [0] * len(shape), list(shape)
        offset[axis], extent[axis] = start, stop - start
        blocks.append(Box(tuple(offset), tuple(extent)))
    return blocks


def inverted(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Other values everywhere: what is not loaded cannot be right by chance."""
    if values.dtype == np.bool_:
        return np.asarray(~values)  # a byte that is neither 0 nor 1 is no bool
    raw = np.array(values, order="C").reshape(-1).view(np.uint8)
    return np.invert(raw).view(values.dtype).reshape(values.shape)
