"""`load`: the story of a load, top to bottom.

open → describe what is wanted → compare names, shapes, dtypes → plan → agree across ranks → read into place → report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

from flexstore.backends import open_store
from flexstore.checkpoint import open_manifest
from flexstore.collector import collector_paused
from flexstore.core.manifest import Manifest
from flexstore.core.state import restore
from flexstore.errors import UnsupportedVersionError
from flexstore.frameworks import Description, describe
from flexstore.groups.base import ProcessGroup
from flexstore.groups.coordinator import Coordinator
from flexstore.groups.resolve import resolve_group
from flexstore.pipeline.reading import ReadOptions, ReadStats
from flexstore.planning.load import LoadPlan, plan_load
from flexstore.planning.matching import Match, match, merged, refuse
from flexstore.strategies import strategy_named
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
    options: ReadOptions | None = None,
) -> LoadReport:
    """Load a checkpoint into a state, in place, under whatever layout the state has. Every rank of the group calls it.

    Args:
        state: as for `flexstore.save`: its tensors are filled, its plain values replaced.
        url: path or URL of the checkpoint.
        strategy: the format is detected; naming one only asserts it.
        group: the ranks that load together, as for `flexstore.save`.
        strict: True raises if anything wanted is missing or mismatched; ``"exact"`` also if the checkpoint holds
            names that no rank wants; False loads what fits and reports the rest.
        cast: accept a different dtype and convert the values.
        verify: check every checksum.
        storage_options: for the backend.
        options: byte budget and progress; its ``verify`` counts as well.

    Returns:
        What was done.

    Raises:
        CheckpointNotFoundError: nothing is published there.
        StateMismatchError: see ``strict``; raised on all ranks before any byte is read.
        CorruptCheckpointError: stored bytes are not what was written. The state is then partly filled.
        GroupTimeoutError: some ranks did not call; it names them.
    """
    started = time.perf_counter()
    ranks = Coordinator(resolve_group(group))
    store = ranks.local("open", lambda: open_store(url, storage_options))
    manifest: Manifest = ranks.on_coordinator("open", lambda: open_manifest(store)[0])
    reader = ranks.local("open", lambda: _reader(manifest, strategy))
    wanted = ranks.local("describe", lambda: describe(state, writable=True))
    found = merged(ranks.step("compare", lambda: _compare(manifest, wanted, cast)))
    unexpected = found.unexpected(manifest)
    if (strict and (found.missing or found.mismatched)) or (strict == "exact" and unexpected):
        raise refuse(found, unexpected, store.url)
    regions = [r for r in wanted.regions if r.key not in found.missing and r.key not in found.mismatched]
    given = options or ReadOptions()
    context = LoadContext(store, ReadOptions(verify and given.verify, given.budget_nbytes, given.progress))

    def read() -> ReadStats:
        plan: LoadPlan = plan_load(manifest, [(region.key, region.box) for region in regions])
        return reader.read(plan, regions, context)

    stats: Sequence[ReadStats] = ranks.step("read", read)
    restore(state, {name: manifest.common[name] for name in wanted.common if name in manifest.common})
    mine = stats[ranks.rank]
    return LoadReport(
        tuple(sorted(found.missing)),
        unexpected,
        tuple(sorted(found.mismatched)),
        mine.nbytes,
        mine.requests,
        time.perf_counter() - started,
    )


def _reader(manifest: Manifest, strategy: str | Strategy | None) -> LoadStrategy:
    """The strategy that reads a checkpoint; a named one must be the one it was written with."""
    if strategy is not None:
        asserted = strategy_named(strategy)
        if asserted.name != manifest.strategy:
            raise UnsupportedVersionError(
                f"the checkpoint is in the format '{manifest.strategy}', not '{asserted.name}'",
                hint="leave strategy out: the format is detected",
            )
        return asserted
    return strategy_named(manifest.strategy)


def _compare(manifest: Manifest, wanted: Description, cast: bool) -> Match:
    return match(manifest, wanted.infos, wanted.common, cast=cast)
