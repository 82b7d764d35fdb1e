"""`save`: the story of a save, top to bottom.

describe the state → survey all ranks → plan → write, with checksums → receipts → publish.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from os import PathLike
from typing import Any

from flexstore.backends import open_store
from flexstore.backends.base import Store
from flexstore.checkpoint import Checkpoint, open_checkpoint
from flexstore.collector import collector_paused
from flexstore.commit import Attempt, exists_error, new_attempt_id, readable_published
from flexstore.core.manifest import MANIFEST_NAME, Manifest
from flexstore.core.region import Region, RegionIndex
from flexstore.errors import CorruptCheckpointError, ObjectNotFoundError
from flexstore.frameworks import Description, describe
from flexstore.groups.base import ProcessGroup
from flexstore.groups.coordinator import Coordinator, check_same_arguments
from flexstore.groups.resolve import resolve_group
from flexstore.pipeline.digesting import digest_items
from flexstore.pipeline.memory import DEFAULT_BUDGET
from flexstore.pipeline.writing import WriteOptions
from flexstore.planning.items import Survey
from flexstore.planning.merge import check_names, merge_common
from flexstore.planning.receipts import Receipt
from flexstore.planning.save import SavePlan, plan_save
from flexstore.planning.signature import signature
from flexstore.strategies import detect_strategy, strategy_named
from flexstore.strategies.base import SaveContext, Strategy
from flexstore.version import LIBRARY


class PendingSave:
    """A save that was begun; `result` waits for it and raises what failed."""

    def __init__(self, outcome: Future[None], reopen: Callable[[], Checkpoint]) -> None:
        self._outcome = outcome
        self._reopen = reopen

    def done(self) -> bool:
        """True once the save has succeeded or failed."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> Checkpoint:
        """The published checkpoint.

        Args:
            timeout: most seconds to wait; None waits for ever.

        Raises:
            TimeoutError: it is not done yet.
            FlexstoreError: what failed, with the rank.
        """
        self._outcome.result(timeout)
        return self._reopen()


@collector_paused()
def save(
    state: Any,
    url: str | PathLike[str],
    strategy: str | Strategy = "distcp",
    *,
    group: ProcessGroup | str | Any = None,
    overwrite: bool = False,
    check_replicas: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    budget_nbytes: int = DEFAULT_BUDGET,
    progress: Callable[[int], None] | None = None,
) -> PendingSave:
    """Save a sharded state. Every rank of the group calls it, each with its own part.

    The tensors must not change before it returns.

    Args:
        state: a possibly nested dict of tensors, shards, lists of shards of one key, and plain values. A plain tensor
            is whole and replicated; plain values are equal on all ranks that have them.
        url: path or URL of the checkpoint, on storage that all ranks share; a fresh one, unless ``overwrite``.
        strategy: name of a strategy (see `flexstore.strategies`), or a strategy object.
        group: the ranks that save together; None takes the framework's initialised default group, or this process
            alone.
        overwrite: replace what is published there. The old checkpoint stays whole until the new one is in place.
        check_replicas: compare the bytes of replicated tensors between ranks (one checksum pass over them; E13).
        storage_options: for the backend.
        budget_nbytes: most extra memory of this rank for what is in flight.
        progress: called with the number of bytes that became written, from any thread.

    Returns:
        A handle, already done.

    Raises:
        CheckpointExistsError: something is published there and ``overwrite`` was not given.
        InvalidStateError: the state contradicts itself, or the ranks' states or arguments do not fit together.
        GroupTimeoutError: some ranks did not call; it names them. If that happens in the step "publish", the
            checkpoint may have been published all the same.
        StoreError: the storage failed. Nothing was published then, and an old checkpoint is as it was, except if only
            what is written under fixed names for other programs (the index of a Hugging Face directory) failed.
    """
    ranks = Coordinator(resolve_group(group))
    described = ranks.local("describe", lambda: _Described.of(state, url, storage_options, ranks, strategy))
    chosen, store = described.strategy, described.store
    superseded: list[Manifest] = []
    ranks.on_coordinator("look at the target", lambda: superseded.extend(_look_at(store, overwrite)))
    plan, attempt_id = _agree(described, ranks, overwrite)
    attempt = Attempt(attempt_id, store, chosen.name, overwrite, LIBRARY)
    context = SaveContext(store, attempt_id, ranks.rank, ranks.size, WriteOptions(budget_nbytes, progress))

    def write() -> Receipt:
        return _write(plan, described.description.regions, chosen, context, check_replicas)

    def publish() -> None:
        published = attempt.publish(plan, receipts, lambda manifest: chosen.finalize(manifest, context))
        chosen.advertise(published.manifest, context)
        if published.superseded is not None:
            superseded.append(published.superseded)

    try:
        receipts = ranks.step("write", write)
    except BaseException:
        if ranks.rank == 0:
            attempt.discard()
        raise
    ranks.on_coordinator("publish", publish)
    # Nobody waits for this: what was replaced is not published any more.
    for manifest in superseded:
        attempt.remove(manifest)
    store.close()
    outcome: Future[None] = Future()
    outcome.set_result(None)
    return PendingSave(outcome, lambda: open_checkpoint(url, strategy=chosen, storage_options=storage_options))


@dataclass(frozen=True)
class _Described:
    """What one rank brings to a save."""

    strategy: Strategy
    store: Store
    description: Description
    survey: Survey
    signature: bytes

    @classmethod
    def of(
        cls,
        state: Any,
        url: str | PathLike[str],
        storage_options: Mapping[str, Any] | None,
        ranks: Coordinator,
        strategy: str | Strategy,
    ) -> _Described:
        chosen = strategy_named(strategy)
        description = describe(state)
        survey = survey_of(ranks.rank, description)
        return cls(
            chosen,
            open_store(url, storage_options),
            description,
            survey,
            signature(survey, ranks.size, chosen.name),
        )


def survey_of(rank: int, description: Description) -> Survey:
    """What a rank tells the others about its state."""
    boxes = [(region.key, region.box) for region in description.regions]
    return Survey.of(rank, description.infos, boxes, description.common, description.common_paths)


@dataclass(frozen=True)
class _Announcement:
    """What every rank tells the others first: little, if the same state was planned before."""

    attempt: str
    arguments: dict[str, object]
    signature: bytes
    known: frozenset[bytes]
    common: Survey


def _agree(described: _Described, ranks: Coordinator, overwrite: bool) -> tuple[SavePlan, str]:
    """Survey all ranks and plan; the plan of an earlier save of the same state is reused, with today's plain values."""
    plans = _PLANS.snapshot()

    def announce() -> _Announcement:
        arguments = {"strategy": described.strategy.name, "overwrite": overwrite}
        known = frozenset(plans)
        return _Announcement(new_attempt_id(), arguments, described.signature, known, described.survey.common_only())

    heard: list[_Announcement] = ranks.step("announce", announce)
    check_same_arguments([a.arguments for a in heard])
    key = blake2b(b"".join(a.signature for a in heard), digest_size=32).digest()
    if all(key in a.known for a in heard):
        common, paths = merge_common([a.common for a in heard])
        check_names(plans[key].tensors, common)
        plan = replace(plans[key], common=common, common_paths=paths)
    else:
        surveys: list[Survey] = ranks.step("survey", lambda: described.survey)
        plan = plan_save(surveys, splits_replicas=described.strategy.splits_replicas)
    _PLANS.put(key, plan)
    return plan, heard[0].attempt


def _look_at(store: Store, overwrite: bool) -> Iterator[Manifest]:
    """Refuse what would fail only after all data was written; yields what another program wrote there, if it did."""
    if overwrite and readable_published(store) is not None:
        return
    foreign = detect_strategy(store)
    if not overwrite and (foreign is not None or _exists(store, MANIFEST_NAME)):
        raise exists_error(store.url)
    if foreign is not None:
        with suppress(CorruptCheckpointError):
            yield foreign.read_manifest(store)


def _exists(store: Store, name: str) -> bool:
    try:
        store.head(name)
    except ObjectNotFoundError:
        return False
    return True


def _write(
    plan: SavePlan, regions: Sequence[Region], strategy: Strategy, context: SaveContext, check_replicas: bool
) -> Receipt:
    """Write this rank's items; digest what it holds but another rank writes."""
    memory = RegionIndex(regions)
    items = plan.items_of(context.rank)
    written = strategy.write(items, [memory.find(item.key, item.box) for item in items], context)
    held = plan.replicas_of(context.rank) if check_replicas else []
    return Receipt(context.rank, written, digest_items(held, [memory.find(item.key, item.box) for item in held]))


class _PlanCache:
    """The last few plans of this process, by a digest of the signatures of all ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._plans: OrderedDict[bytes, SavePlan] = OrderedDict()
        self._lock = threading.Lock()

    def snapshot(self) -> Mapping[bytes, SavePlan]:
        """All plans, as they are now: what a rank has announced it must still have when all have announced."""
        with self._lock:
            return dict(self._plans)

    def put(self, key: bytes, plan: SavePlan) -> None:
        """Keep a plan that was made or used."""
        with self._lock:
            self._plans[key] = plan
            self._plans.move_to_end(key)
            while len(self._plans) > self._size:
                self._plans.popitem(last=False)


_PLANS = _PlanCache(8)
