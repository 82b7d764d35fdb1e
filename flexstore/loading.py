"""`load`: the story of a load, top to bottom.

open → describe what is wanted → compare names, shapes, dtypes → plan → agree across ranks → read into place → report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np

from flexstore.backends import open_store
from flexstore.checkpoint import open_manifest, reader_of
from flexstore.collector import collector_paused
from flexstore.core.aliasing import is_same_memory, overlaps_itself, sharing
from flexstore.core.box import Box
from flexstore.core.manifest import Manifest
from flexstore.core.region import Array, HostArray, Region
from flexstore.core.state import restore
from flexstore.errors import InvalidStateError
from flexstore.frameworks import Description, describe
from flexstore.groups.base import ProcessGroup
from flexstore.groups.coordinator import Coordinator, check_same_arguments
from flexstore.groups.resolve import resolve_group
from flexstore.pipeline.memory import DEFAULT_BUDGET
from flexstore.pipeline.reading import ReadOptions, ReadStats
from flexstore.planning.load import plan_load
from flexstore.planning.matching import Match, match, merged, refuse
from flexstore.strategies.base import LoadContext, LoadStrategy, Strategy


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did. The lists are the same on all ranks, the figures are this rank's.

    Attributes:
        missing: names in the state of some rank that the checkpoint lacks; left as they were.
        unexpected: names in the checkpoint that no rank's state has.
        mismatched: names whose shape, dtype or declared axis differs; left as they were.
        bytes_read: from storage, rounding to checksum blocks included.
        reads: number of storage requests.
        seconds: wall time.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    bytes_read: int
    reads: int
    seconds: float


@collector_paused()
def load(
    state: Any,
    url: str | PathLike[str],
    strategy: str | Strategy | None = None,
    *,
    group: ProcessGroup | str | Any = None,
    strict: bool | Literal["exact"] = True,
    cast: bool = False,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    budget_nbytes: int = DEFAULT_BUDGET,
    progress: Callable[[int], None] | None = None,
) -> LoadReport:
    """Load a checkpoint into a state, in place, under whatever layout the state has. Every rank of the group calls it.

    Args:
        state: as for `flexstore.save`: its tensors are filled, its plain values replaced. Tensors may not share
            memory, unless they are the same memory under two names (tied weights) and the checkpoint holds the same
            values under both.
        url: path or URL of the checkpoint.
        strategy: the format is detected; naming one only asserts it.
        group: the ranks that load together, as for `flexstore.save`.
        strict: True raises if anything wanted is missing or mismatched; ``"exact"`` also if the checkpoint holds
            names that no rank wants; False loads what fits and reports the rest.
        cast: accept a different dtype and convert the values.
        verify: check every checksum.
        storage_options: for the backend.
        budget_nbytes: most extra memory of this rank for what is in flight.
        progress: called with the number of bytes that were read, from any thread.

    Returns:
        What was done.

    Raises:
        CheckpointNotFoundError: nothing is published there.
        StateMismatchError: see ``strict``; raised on all ranks before any byte is read.
        InvalidStateError: the state contradicts itself, its tensors share memory, or the ranks' arguments differ.
        CorruptCheckpointError: stored bytes are not what was written. The state is then partly filled.
        GroupTimeoutError: some ranks did not call; it names them.
    """
    started = time.perf_counter()
    ranks = Coordinator(resolve_group(group))
    store = ranks.local("open", lambda: open_store(url, storage_options))
    manifest: Manifest = ranks.on_coordinator("open", lambda: open_manifest(store, strategy)[0])
    reader = ranks.local("choose strategy", lambda: reader_of(manifest, strategy))
    wanted = ranks.local("describe", lambda: describe(state, writable=True))
    found = agree_match(ranks, manifest, wanted, strict, cast, store.url)
    regions, tied = ranks.local("check memory", lambda: distinct_targets(found.loadable(wanted.regions)))
    context = LoadContext(store, ReadOptions(verify, budget_nbytes, progress))

    def read() -> ReadStats:
        plan = plan_load(manifest, [(region.key, region.box) for region in regions])
        stats = reader.read(plan, regions, context)
        for region in tied:
            _check_tied(region, manifest, reader, context)
        return stats

    stats: Sequence[ReadStats] = ranks.step("read", read)
    restore(state, {name: manifest.common[name] for name in wanted.common if name in manifest.common})
    store.close()
    mine = stats[ranks.rank]
    return LoadReport(
        missing=tuple(sorted(found.missing)),
        unexpected=found.unexpected(manifest),
        mismatched=tuple(sorted(found.mismatched)),
        bytes_read=mine.nbytes,
        reads=mine.requests,
        seconds=time.perf_counter() - started,
    )


def agree_match(
    ranks: Coordinator,
    manifest: Manifest,
    wanted: Description,
    strict: bool | Literal["exact"],
    cast: bool,
    source: str,
) -> Match:
    """Compare what all ranks want with what there is, and refuse on all of them what ``strict`` does not allow."""
    heard = ranks.step(
        "compare",
        lambda: (match(manifest, wanted.infos, wanted.common, cast=cast), {"strict": strict, "cast": cast}),
    )
    check_same_arguments([arguments for _, arguments in heard])
    found = merged([matched for matched, _ in heard])
    unexpected = found.unexpected(manifest)
    if (strict and (found.missing or found.mismatched)) or (strict == "exact" and unexpected):
        raise refuse(found, unexpected, source)
    return found


def distinct_targets(regions: Sequence[Region]) -> tuple[list[Region], list[Region]]:
    """The regions to fill, and those that are the very memory of one of them under another name (tied weights).

    What belongs into the latter is only compared with what they hold then: see `check_tied_values`.

    Raises:
        InvalidStateError: regions share memory in any other way.
    """
    for region in regions:
        if overlaps_itself(region):
            raise InvalidStateError(
                f"'{region.key}' {region.box} is expanded: several of its elements share one place in memory",
                key=region.key,
                box=region.box,
                hint="load into a copy of it",
            )
    tied: set[int] = set()
    for one, other in sharing(regions):
        if not is_same_memory(one, other):
            raise InvalidStateError(
                f"'{one.key}' {one.box} and '{other.key}' {other.box} overlap in memory",
                key=other.key,
                box=other.box,
                hint="load into tensors of their own",
            )
        tied.add(id(other))
    filled = [region for region in regions if id(region) not in tied]
    return filled, [region for region in regions if id(region) in tied]


def check_tied_values(region: Region, part: Box, values: Array) -> None:
    """What is stored under a second name of a tensor must be what was filled in under its first.

    Args:
        region: of the second name.
        part: the box of it that ``values`` belong to.
        values: of the region's dtype.

    Raises:
        InvalidStateError: the bytes differ.
    """
    if region.fetch(part).tobytes() != values.tobytes():
        raise InvalidStateError(
            f"'{region.key}' is another name of a tensor of the state, but other values are stored under it",
            key=region.key,
            box=part,
            hint="untie the two, or leave one of the names out of the state",
        )


def _check_tied(region: Region, manifest: Manifest, reader: LoadStrategy, context: LoadContext) -> None:
    for part in region.box.pieces(context.options.budget_nbytes // (2 * region.dtype.itemsize)):
        values = np.empty(part.shape, region.dtype.numpy)
        scratch = Region(region.key, part, HostArray(values, region.dtype))
        reader.read(plan_load(manifest, [(region.key, part)]), [scratch], context)
        check_tied_values(region, part, values)
