"""Memory to memory: the source ranks' memory seen as a checkpoint with one file per rank. Pure.

So a reshard is planned by the same code as a load (R1): a chunk of "file" r is a box in the memory of rank r.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flexstore.core.box import Box
from flexstore.core.manifest import ChunkTable, FileInfo, Ints, Manifest
from flexstore.planning.load import find_overlaps
from flexstore.planning.save import SavePlan


@dataclass(frozen=True, slots=True)
class Parcel:
    """One box that travels from one rank to another, bounded in size.

    Attributes:
        key: of the tensor.
        box: in global coordinates.
        region: index of the wanted region on the receiving rank.
        nbytes: of the box, in the source's dtype.
    """

    key: str
    box: Box
    region: int
    nbytes: int


def memory_manifest(plan: SavePlan, rank: int) -> Manifest:
    """The source ranks' memory as ``rank`` sees it.

    Every item lies in the "file" of a rank: its own where it holds the item, else that of the rank which the plan
    chose, so that the replicas share the work.
    """
    order = np.argsort(plan.tensor, kind="stable")
    source = plan.writer.copy()
    source[plan.held_by(rank)] = rank
    table = ChunkTable(
        tensor=plan.tensor[order],
        offset=plan.offset[:, order],
        shape=plan.shape[:, order],
        file=source[order],
        byte_offset=np.zeros(len(order), np.int64),
        fortran=np.zeros(len(order), np.bool_),
        crcs=np.zeros(0, np.uint32),
        crc_start=np.zeros(len(order) + 1, np.int64),
    )
    files = tuple(FileInfo(str(r), 0) for r in range(plan.world_size))
    return Manifest("", "memory", plan.tensors, files, table, plan.common, plan.common_paths)


def only_from(manifest: Manifest, rank: int) -> Manifest:
    """The same manifest with only the chunks that lie in the "file" of ``rank``."""
    table = manifest.chunks
    rows: Ints = np.flatnonzero(table.file == rank)
    picked = replace(
        table,
        tensor=table.tensor[rows],
        offset=table.offset[:, rows],
        shape=table.shape[:, rows],
        file=table.file[rows],
        byte_offset=table.byte_offset[rows],
        fortran=table.fortran[rows],
        crc_start=np.zeros(len(rows) + 1, np.int64),
    )
    return replace(manifest, chunks=picked)


def parcels(
    manifest: Manifest, tensor: Ints, offset: Ints, shape: Ints, limit_nbytes: int
) -> Iterator[tuple[int, Parcel]]:
    """What the wanted regions need from the chunks of ``manifest``, cut into boxes of at most about ``limit_nbytes``.

    Both sides of a transfer call this, the receiver with all chunks and the sender with its own, and get the same
    parcels of one pair of ranks in the same order.

    Yields:
        ``(source rank, parcel)``, by region and then by chunk.
    """
    over = find_overlaps(manifest, tensor, offset, shape)
    table = manifest.chunks
    for i, (region, row) in enumerate(zip(over.region.tolist(), over.chunk.tolist(), strict=True)):
        info = manifest.tensors[int(table.tensor[row])]
        for box in over.box(i, len(info.shape)).pieces(limit_nbytes // info.dtype.itemsize):
            yield int(table.file[row]), Parcel(info.key, box, region, box.size * info.dtype.itemsize)
