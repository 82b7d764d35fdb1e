"""Where a rank's part of a tensor lies when a device mesh cuts it: DistTensors, DTensors. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from flexstore.core.box import Box
from flexstore.errors import InvalidStateError

Indices: TypeAlias = Sequence[int]


class Cut(NamedTuple):
    """One mesh dimension that cuts one tensor dimension.

    Attributes:
        mesh_dim, tensor_dim: which cuts which.
        split_factor: the dimension is first split into so many pieces, and each of them is cut (torch's strided
            sharding; 1 is a plain cut).
    """

    mesh_dim: int
    tensor_dim: int
    split_factor: int = 1


@lru_cache(maxsize=4096)
def block_on_mesh(
    global_shape: tuple[int, ...], mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], cuts: tuple[Cut, ...]
) -> Box:
    """The block of the rank at ``coordinate``.

    Each cut divides what the cuts before it left over. A dimension of ``n`` elements is cut into parts of
    ``ceil(n / parts)``, of which the last ones may be smaller or empty, as Paddle and torch do.

    Args:
        global_shape: of the whole tensor.
        mesh_shape: ranks per mesh dimension.
        coordinate: of the rank in the mesh.
        cuts: in the order in which they apply; mesh dimensions without a cut hold replicas.

    Returns:
        A box in global coordinates, perhaps an empty one.

    Raises:
        InvalidStateError: the rank's elements do not form one box (a strided cut that no later cut undoes).
    """
    held: list[Indices] = [range(dim) for dim in global_shape]
    for mesh_dim, dim, split_factor in cuts:
        pieces = [_part(held[dim], split_factor, i) for i in range(split_factor)]
        cut = [_part(piece, mesh_shape[mesh_dim], coordinate[mesh_dim]) for piece in pieces]
        held[dim] = cut[0] if len(cut) == 1 else np.concatenate(cut).tolist()
    if any(len(indices) and indices[-1] - indices[0] + 1 != len(indices) for indices in held):
        raise InvalidStateError(
            f"a strided cut leaves rank {coordinate} of the mesh with more than one box",
            hint="describe its pieces as ShardedTensors",
        )
    return Box(tuple(int(i[0]) if len(i) else 0 for i in held), tuple(len(i) for i in held))


def _part(indices: Indices, parts: int, which: int) -> Indices:
    size = -(-len(indices) // parts)
    return indices[which * size : (which + 1) * size]
