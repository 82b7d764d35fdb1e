"""Receipts: what a rank says it wrote, and the manifest that receipts and plan make together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flexstore.core.box import Box
from flexstore.core.manifest import ChunkTable, FileInfo, Ints, Manifest
from flexstore.errors import CheckpointError, ReplicaMismatchError
from flexstore.planning.save import SavePlan


@dataclass(frozen=True)
class Written:
    """The chunks that one rank wrote, as columns of length n.

    Attributes:
        files: the files it wrote.
        item: index of the item in the save plan.
        file: index into ``files``.
        byte_offset: of the item in its file.
        crcs, crc_start: as in `ChunkTable`.
    """

    files: tuple[FileInfo, ...]
    item: Ints
    file: Ints
    byte_offset: Ints
    crcs: npt.NDArray[np.uint32]
    crc_start: Ints

    def crcs_of(self, row: int) -> npt.NDArray[np.uint32]:
        """The block CRCs of one chunk."""
        return self.crcs[self.crc_start[row] : self.crc_start[row + 1]]


@dataclass(frozen=True)
class Receipt:
    """What one rank did in one attempt.

    Attributes:
        rank: which.
        written: what it wrote.
        held: item index → digest of the bytes this rank holds of an item that another rank writes (E13).
    """

    rank: int
    written: Written
    held: Mapping[int, int] = field(default_factory=dict)


def check_replicas(plan: SavePlan, held: Sequence[Mapping[int, int]], written: Mapping[int, int]) -> None:
    """Compare what the holders of one box hold (E13).

    Args:
        plan: of the save.
        held: per rank, item index → digest of the bytes it holds.
        written: item index → digest of the bytes of the item's writer, for every item in ``held``.

    Raises:
        ReplicaMismatchError: naming key, box and ranks of the first difference, and how many there are.
    """
    different = [
        (item, rank)
        for rank, digests in enumerate(held)
        for item, digest in digests.items()
        if digest != written.get(item)
    ]
    if not different:
        return
    item, rank = min(different)
    info = plan.tensors[int(plan.tensor[item])]
    ndim = len(info.shape)
    box = Box(tuple(plan.offset[:ndim, item].tolist()), tuple(plan.shape[:ndim, item].tolist()))
    raise ReplicaMismatchError(
        f"ranks {plan.writer[item]} and {rank} hold different bytes of '{info.key}' {box}; "
        f"{len(different)} such difference(s) in all",
        key=info.key,
        box=box,
        rank=rank,
        hint="give different tensors (such as experts of different ranks) different keys, or synchronise the replicas",
    )


def assemble_chunks(plan: SavePlan, receipts: Sequence[Receipt]) -> tuple[tuple[FileInfo, ...], ChunkTable]:
    """The files and chunks of a manifest, from all receipts.

    Raises:
        CheckpointError: the receipts do not account for every item exactly once.
    """
    parts = [receipt.written for receipt in receipts]
    item = np.concatenate([w.item for w in parts])
    if not np.array_equal(np.sort(item), np.arange(len(plan))):
        raise CheckpointError(
            f"the ranks wrote {len(item)} items of {len(plan)}, some twice or never",
            hint="this is a bug of a strategy: its write() must return every item once",
        )
    first_file = np.cumsum([0, *(len(w.files) for w in parts)])
    file = np.concatenate([w.file + first_file[i] for i, w in enumerate(parts)])
    order = np.lexsort((item, plan.tensor[item]))
    counts = np.concatenate([np.diff(w.crc_start) for w in parts])
    crcs = np.concatenate([w.crcs for w in parts])
    picked = item[order]
    table = ChunkTable(
        tensor=plan.tensor[picked],
        offset=plan.offset[:, picked],
        shape=plan.shape[:, picked],
        file=file[order],
        byte_offset=np.concatenate([w.byte_offset for w in parts])[order],
        fortran=np.zeros(len(picked), np.bool_),
        crcs=_permuted(crcs, counts, order),
        crc_start=np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64),
    )
    return tuple(info for w in parts for info in w.files), table


def _permuted(values: npt.NDArray[np.uint32], counts: Ints, order: Ints) -> npt.NDArray[np.uint32]:
    """Ragged rows of ``values`` (``counts`` long each) in another order."""
    start = np.cumsum(counts) - counts
    picked = counts[order]
    within = np.arange(picked.sum()) - np.repeat(np.cumsum(picked) - picked, picked)
    permuted: npt.NDArray[np.uint32] = values[np.repeat(start[order], picked) + within]
    return permuted


def manifest_of(
    plan: SavePlan, receipts: Sequence[Receipt], *, attempt: str, strategy: str, created: float, library: str
) -> Manifest:
    """The manifest of a finished attempt, before foreign metadata is added."""
    files, chunks = assemble_chunks(plan, receipts)
    return Manifest(
        attempt=attempt,
        strategy=strategy,
        tensors=plan.tensors,
        files=files,
        chunks=chunks,
        common=plan.common,
        common_paths=plan.common_paths,
        created=created,
        world_size=plan.world_size,
        library=library,
    )
