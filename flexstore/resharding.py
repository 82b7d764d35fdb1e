"""`reshard`: from the memory of all ranks to the memory of all ranks, under another layout. No storage (R1).

describe both sides → survey → plan as for a save and a load → exchange the overlaps in bounded rounds → report.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from flexstore.collector import collector_paused
from flexstore.core.aliasing import is_same_memory, sharing
from flexstore.core.box import Box
from flexstore.core.manifest import Ints, Manifest
from flexstore.core.region import Array, Region, RegionIndex
from flexstore.core.state import restore
from flexstore.errors import InvalidStateError
from flexstore.frameworks import describe
from flexstore.groups.base import ProcessGroup
from flexstore.groups.coordinator import Coordinator
from flexstore.groups.resolve import resolve_group
from flexstore.loading import LoadReport, agree_match, check_tied_values, distinct_targets
from flexstore.pipeline.digesting import digest_items
from flexstore.pipeline.memory import Bytes, ItemBytes
from flexstore.planning.load import plan_load
from flexstore.planning.receipts import check_replicas as compare_replicas
from flexstore.planning.save import SavePlan, plan_save
from flexstore.planning.transfer import Parcel, memory_manifest, only_from, parcels
from flexstore.saving import survey_of

_LARGEST_PARCEL = 4 << 20
_SMALLEST_PARCEL = 64 << 10


@collector_paused()
def reshard(
    src_state: Any,
    dst_state: Any,
    *,
    group: ProcessGroup | str | Any = None,
    strict: bool | Literal["exact"] = True,
    cast: bool = False,
    check_replicas: bool = True,
    budget_nbytes: int = 256 << 20,
) -> LoadReport:
    """Copy a sharded state into another one with another layout, over the group. Every rank calls it.

    Args:
        src_state: what the ranks have, as for `flexstore.save`.
        dst_state: what they want, as for `flexstore.load`; filled in place. It may not share memory with
            ``src_state``, except where a rank keeps the very same box in the very same place.
        group, strict, cast: as for `flexstore.load`.
        check_replicas: as for `flexstore.save`.
        budget_nbytes: most extra memory of this rank for what is in flight.

    Returns:
        What was done; ``bytes_read`` counts what came from other ranks.

    Raises:
        InvalidStateError: the source state contradicts itself, the two states overlap in memory, or the target's
            tensors share memory in another way than `flexstore.load` allows.
        StateMismatchError: see ``strict``.
    """
    started = time.perf_counter()
    ranks = Coordinator(resolve_group(group))
    source = ranks.local("describe source", lambda: describe(src_state))
    target = ranks.local("describe target", lambda: describe(dst_state, writable=True))
    surveys = ranks.step("survey source", lambda: survey_of(ranks.rank, source))
    plan = plan_save(surveys)
    if check_replicas:
        _check_replicas(ranks, plan, source.regions)
    manifest = memory_manifest(plan, ranks.rank)
    found = agree_match(ranks, manifest, target, strict, cast, "the source state")
    filled, tied = ranks.local("check memory", lambda: _targets(source.regions, found.loadable(target.regions)))

    def move(targets: Sequence[Region], take: _Take) -> tuple[int, int]:
        wanted = ranks.step("survey target", lambda: _wanted(manifest, targets, budget_nbytes))
        return ranks.local("plan", lambda: _Traffic(ranks, plan, source.regions, targets, take, wanted)).run()

    moved = move(filled, Region.store), move(tied, check_tied_values)
    received, messages = map(sum, zip(*moved, strict=True))
    restore(dst_state, {name: manifest.common[name] for name in target.common if name in manifest.common})
    return LoadReport(
        missing=tuple(sorted(found.missing)),
        unexpected=found.unexpected(manifest),
        mismatched=tuple(sorted(found.mismatched)),
        bytes_read=received,
        reads=messages,
        seconds=time.perf_counter() - started,
    )


def _check_replicas(ranks: Coordinator, plan: SavePlan, regions: Sequence[Region]) -> None:
    """All holders of a box must hold the same bytes (E13)."""
    items = plan.shared_by(ranks.rank)
    memory = RegionIndex(regions)
    sources = [memory.find(item.key, item.box) for item in items]
    held = ranks.step("compare replicas", lambda: digest_items(items, sources))
    compare_replicas(plan, held, {item: held[int(plan.writer[item])][item] for digests in held for item in digests})


@dataclass(frozen=True)
class _Wanted:
    """The regions one rank wants, as columns for `flexstore.planning.transfer.parcels`, and its budget."""

    tensor: Ints
    offset: Ints
    shape: Ints
    budget_nbytes: int


def _wanted(manifest: Manifest, regions: Sequence[Region], budget_nbytes: int) -> _Wanted:
    plan = plan_load(manifest, [(region.key, region.box) for region in regions])
    tensor = np.fromiter((manifest.index[r.key] for r in regions), np.int64, len(regions))
    return _Wanted(tensor, plan.wanted_offset, plan.wanted_shape, budget_nbytes)


def _targets(sources: Sequence[Region], targets: Sequence[Region]) -> tuple[list[Region], list[Region]]:
    """The targets as `distinct_targets` tells them apart.

    Raises:
        InvalidStateError: one overlaps a source in memory, which would be read after it was overwritten.
    """
    for source, target in sharing(sources, targets):
        if (source.key, source.box) != (target.key, target.box) or not is_same_memory(source, target):
            raise InvalidStateError(
                f"the target '{target.key}' {target.box} shares memory with the source '{source.key}' {source.box}",
                key=target.key,
                box=target.box,
                hint="copy the source first",
            )
    return distinct_targets(targets)


_Take: TypeAlias = Callable[[Region, Box, Array], None]
"""What a rank does with the values of a box of one of its regions."""


class _Traffic:
    """The parcels that this rank sends and receives, in rounds that fit the smallest budget of any rank."""

    def __init__(
        self,
        ranks: Coordinator,
        plan: SavePlan,
        sources: Sequence[Region],
        targets: Sequence[Region],
        take: _Take,
        wanted: Sequence[_Wanted],
    ) -> None:
        self.ranks, self.targets, self.take = ranks, targets, take
        self.dtypes = {tensor.key: tensor.dtype.numpy for tensor in plan.tensors}
        self.sources = RegionIndex(sources)
        # Half the budget is for what comes in, half for what goes out, shared by all pairs of ranks.
        share = max(_SMALLEST_PARCEL, min(w.budget_nbytes for w in wanted) // (2 * ranks.size))
        limit = min(_LARGEST_PARCEL, share)
        self.sends = {
            rank: list(
                _rounds(_cut(only_from(memory_manifest(plan, rank), ranks.rank), want, limit)[ranks.rank], share)
            )
            for rank, want in enumerate(wanted)
        }
        incoming = _cut(memory_manifest(plan, ranks.rank), wanted[ranks.rank], limit)
        self.receives = {rank: list(_rounds(incoming[rank], share)) for rank in range(ranks.size)}

    def run(self) -> tuple[int, int]:
        """Move everything; returns bytes and messages received from other ranks."""
        received = messages = 0
        for number in range(max(self.ranks.step("copy what stays", self._copy_own))):
            nbytes, count = self._round(
                {rank: cut[number] for rank, cut in self.sends.items() if number < len(cut)},
                {rank: cut[number] for rank, cut in self.receives.items() if number < len(cut)},
            )
            received, messages = received + nbytes, messages + count
        return received, messages

    def _copy_own(self) -> int:
        """What this rank has itself; returns how many rounds the rest takes."""
        me = self.ranks.rank
        self.receives.pop(me)
        for parcel in (parcel for batch in self.sends.pop(me) for parcel in batch):
            self._store(parcel, self._read(parcel))
        return max((len(cut) for cut in (*self.sends.values(), *self.receives.values())), default=0)

    def _round(self, sends: dict[int, list[Parcel]], receives: dict[int, list[Parcel]]) -> tuple[int, int]:
        incoming = {rank: np.empty(sum(p.nbytes for p in cut), np.uint8) for rank, cut in receives.items()}

        def pack() -> list[tuple[int, Bytes]]:
            return [(rank, np.concatenate([self._read(p) for p in cut])) for rank, cut in sends.items()]

        def unpack() -> None:
            for rank, cut in receives.items():
                at = 0
                for parcel in cut:
                    self._store(parcel, incoming[rank][at : at + parcel.nbytes])
                    at += parcel.nbytes

        outgoing = self.ranks.local("pack", pack)
        self.ranks.group.exchange("exchange", outgoing, list(incoming.items()))
        self.ranks.local("unpack", unpack)
        return sum(data.size for data in incoming.values()), len(incoming)

    def _read(self, parcel: Parcel) -> Bytes:
        return ItemBytes(self.sources.find(parcel.key, parcel.box), parcel.box).read(0, parcel.nbytes)

    def _store(self, parcel: Parcel, data: Bytes) -> None:
        region = self.targets[parcel.region]
        values = data.view(self.dtypes[parcel.key]).reshape(parcel.box.shape)
        self.take(region, parcel.box, values.astype(region.dtype.numpy, copy=False))


def _cut(manifest: Manifest, want: _Wanted, limit: int) -> dict[int, list[Parcel]]:
    """The parcels of one receiving rank by source rank."""
    cut: dict[int, list[Parcel]] = defaultdict(list)
    for source, parcel in parcels(manifest, want.tensor, want.offset, want.shape, limit):
        cut[source].append(parcel)
    return cut


def _rounds(cut: Sequence[Parcel], limit: int) -> Iterator[list[Parcel]]:
    """Consecutive parcels of at most ``limit`` bytes together; a larger one travels alone."""
    batch: list[Parcel] = []
    used = 0
    for parcel in cut:
        if batch and used + parcel.nbytes > limit:
            yield batch
            batch, used = [], 0
        batch.append(parcel)
        used += parcel.nbytes
    if batch:
        yield batch
