"""`save`: the story of a save, top to bottom.

describe the state → survey all ranks → plan → write, with checksums → receipts → publish.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from flexstore.backends import open_store
from flexstore.backends.base import Store
from flexstore.checkpoint import Checkpoint, open_checkpoint
from flexstore.collector import collector_paused
from flexstore.commit import Attempt, exists_error, new_attempt_id
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.core.region import Region, RegionIndex
from flexstore.errors import ObjectNotFoundError
from flexstore.frameworks import Description, describe
from flexstore.groups.base import ProcessGroup
from flexstore.groups.coordinator import Coordinator
from flexstore.groups.resolve import resolve_group
from flexstore.pipeline.digesting import digest_items
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
    options: WriteOptions | None = None,
) -> PendingSave:
    """Save a sharded state. Every rank of the group calls it, each with its own part.

    Args:
        state: a possibly nested dict of tensors, shards, lists of shards of one key, and plain values. A plain tensor
            is whole and replicated; plain values are equal on all ranks that have them.
        url: path or URL of the checkpoint; a fresh one, unless ``overwrite``.
        strategy: name of a strategy (see `flexstore.strategies`), or a strategy object.
        group: the ranks that save together; None takes the framework's initialised default group, or this process
            alone.
        overwrite: replace what is published there. The old checkpoint stays whole until the new one is in place.
        check_replicas: compare the bytes of replicated tensors between ranks (one checksum pass over them; E13).
        storage_options: for the backend.
        options: byte budget and progress.

    Returns:
        A handle, already done.

    Raises:
        CheckpointExistsError: something is published there and ``overwrite`` was not given.
        InvalidStateError: the state contradicts itself, or the ranks' states do not fit together.
        GroupTimeoutError: some ranks did not call; it names them.
        StoreError: the storage failed. Nothing was published then, and an old checkpoint is as it was.
    """
    ranks = Coordinator(resolve_group(group))
    chosen = ranks.local("choose strategy", lambda: strategy_named(strategy))
    described = ranks.local("describe", lambda: _Described.of(state, url, storage_options, ranks, chosen))
    plan, attempt_id = _agree(described, ranks, chosen, overwrite)
    attempt = Attempt(attempt_id, described.store, chosen.name, overwrite, LIBRARY)
    context = SaveContext(described.store, attempt_id, ranks.rank, ranks.size, options or WriteOptions())

    def write() -> Receipt:
        return _write(plan, described.description.regions, chosen, context, check_replicas)

    def publish() -> None:
        attempt.publish(plan, receipts, lambda manifest: chosen.finalize(manifest, context))

    try:
        receipts = ranks.step("write", write)
    except BaseException:
        if ranks.rank == 0:
            attempt.discard()
        raise
    ranks.on_coordinator("publish", publish)
    outcome: Future[None] = Future()
    outcome.set_result(None)
    return PendingSave(outcome, lambda: open_checkpoint(url, storage_options=storage_options))


@dataclass(frozen=True)
class _Described:
    """What one rank brings to a save."""

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
        strategy: Strategy,
    ) -> _Described:
        description = describe(state)
        boxes = [(region.key, region.box) for region in description.regions]
        survey = Survey.of(ranks.rank, description.infos, boxes, description.common, description.common_paths)
        return cls(open_store(url, storage_options), description, survey, signature(survey, ranks.size, strategy.name))


@dataclass(frozen=True)
class _Announcement:
    """What every rank tells the others first: little, if the same state was planned before."""

    attempt: str
    signature: bytes
    known: frozenset[bytes]
    common: Survey


def _agree(described: _Described, ranks: Coordinator, strategy: Strategy, overwrite: bool) -> tuple[SavePlan, str]:
    """Survey all ranks and plan; the plan of an earlier save of the same state is reused, with today's plain values."""

    def announce() -> _Announcement:
        if ranks.rank == 0 and not overwrite:
            _require_free(described.store)
        light = replace(
            described.survey,
            tensors=(),
            tensor=described.survey.tensor[:0],
            offset=described.survey.offset[:, :0],
            shape=described.survey.shape[:, :0],
        )
        return _Announcement(new_attempt_id(), described.signature, _PLANS.known(), light)

    heard: list[_Announcement] = ranks.step("announce", announce)
    key = b"".join(a.signature for a in heard)
    cached = _PLANS.get(key) if all(key in a.known for a in heard) else None
    if cached is None:
        surveys: list[Survey] = ranks.step("survey", lambda: described.survey)
        plan = plan_save(surveys, splits_replicas=strategy.splits_replicas)
        _PLANS.put(key, plan)
        return plan, heard[0].attempt
    common, paths = merge_common([a.common for a in heard])
    check_names(cached.tensors, common)
    return replace(cached, common=common, common_paths=paths), heard[0].attempt


def _require_free(store: Store) -> None:
    try:
        store.head(MANIFEST_NAME)
    except ObjectNotFoundError:
        if detect_strategy(store) is None:
            return
    raise exists_error(store.url)


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
    """The last few plans of this process, by the signatures of all ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._plans: OrderedDict[bytes, SavePlan] = OrderedDict()
        self._lock = threading.Lock()

    def known(self) -> frozenset[bytes]:
        with self._lock:
            return frozenset(self._plans)

    def get(self, key: bytes) -> SavePlan | None:
        with self._lock:
            return self._plans.get(key)

    def put(self, key: bytes, plan: SavePlan) -> None:
        with self._lock:
            self._plans[key] = plan
            self._plans.move_to_end(key)
            while len(self._plans) > self._size:
                self._plans.popitem(last=False)


_PLANS = _PlanCache(8)
