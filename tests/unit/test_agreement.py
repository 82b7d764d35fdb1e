"""All ranks pass the same arguments, hold one kind of state, and see one storage; else all of them are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore import saving
from flexstore.backends.base import Store
from flexstore.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidStateError,
    PluginError,
    StateMismatchError,
)
from flexstore.frameworks import describe
from flexstore.groups.threads import ThreadGroup, run
from flexstore.planning.save import SavePlan
from flexstore.retention import collect_garbage
from flexstore.strategies.distcp.format import DistcpFormat
from flexstore.testing import RecordingStore
from tests.stories_kit import STRATEGIES, URL, CountingGroup, bits, handing, memory_store, names, outcomes

pytestmark = pytest.mark.usefixtures("handed")

CHANGING = ("put", "upload", "write", "commit", "delete")
EVERYTHING = -3600.0
"""Grace seconds with which also what is written now counts as old."""


def rows(key: str, rank: int, size: int, value: float = 1.0) -> fs.ShardedTensor:
    """Two rows per rank."""
    return fs.ShardedTensor(key, np.full((2, 3), value), (2, 3), (2 * size, 3), (2 * rank, 0))


# Arguments.


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("argument", "values"), [("strategy", STRATEGIES), ("overwrite", (True, False)), ("overwrite", (False, True))]
)
def test_r2_a_save_with_arguments_that_differ_writes_nothing(
    argument: str, values: Sequence[Any], published: bool
) -> None:
    store = RecordingStore(memory_store())
    if published:
        fs.save({"w": np.zeros(1)}, URL, storage_options=handing(store))
        store.operations.clear()

    def save(group: ThreadGroup) -> None:
        given = {"overwrite": published} | {argument: values[group.rank == 2]}
        fs.save({"w": rows("w", group.rank, 3)}, URL, group=group, storage_options=handing(store), **given)

    errors = outcomes(3, save)
    if published and argument == "overwrite" and values[0] is False:
        assert all(isinstance(error, CheckpointExistsError) for error in errors)
    else:
        for error in errors:
            assert isinstance(error, InvalidStateError)
            assert error.rank == 2
            assert f"{argument} is {values[0]!r} on rank 0 and {values[1]!r} on rank 2" in error.message
    assert store.count(*CHANGING) == 0


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("strict", (True, False)),
        ("strict", (False, "exact")),
        ("cast", (False, True)),
    ],
)
@pytest.mark.parametrize("through", ["storage", "memory"])
def test_r2_a_load_with_arguments_that_differ_moves_nothing(through: str, argument: str, values: Any) -> None:
    store = RecordingStore(memory_store())
    source = {"w": np.ones(3), "step": 1}
    fs.save(source, URL, storage_options=handing(store))
    store.operations.clear()
    targets = [{"w": np.zeros(3), "step": 0} for _ in range(2)]

    def load(group: ThreadGroup) -> None:
        given = {argument: values[group.rank]}
        if through == "storage":
            fs.load(targets[group.rank], URL, group=group, storage_options=handing(store), **given)
        else:
            fs.reshard(source, targets[group.rank], group=group, **given)

    for error in outcomes(2, load):
        assert isinstance(error, InvalidStateError)
        assert error.message.startswith(f"{argument} is {values[0]!r} on rank 0")
    assert store.nbytes("get_into") == 0
    assert all(not target["w"].any() and target["step"] == 0 for target in targets)


def test_r2_a_value_that_is_equal_but_spelt_otherwise_is_the_same() -> None:
    """A strategy by name on one rank, as an object on the other."""
    options = handing(memory_store())

    def save(group: ThreadGroup) -> None:
        strategy = (DistcpFormat(), "distcp")[group.rank]
        fs.save({"w": rows("w", group.rank, 2)}, URL, strategy, group=group, storage_options=options)

    run(2, save)
    fs.open_checkpoint(URL, storage_options=options).verify()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_that_save_to_storage_of_their_own_are_refused(strategy: str) -> None:
    """A path on the nodes' own disks: rank 0 names a rank whose files it cannot see, before it publishes."""
    stores = [memory_store() for _ in range(3)]

    def save(group: ThreadGroup) -> None:
        state = {"w": rows("w", group.rank, 3)}
        fs.save(state, URL, strategy, group=group, storage_options=handing(stores[max(0, group.rank - 1)]))

    for error in outcomes(3, save):
        assert isinstance(error, CheckpointError)
        assert error.rank == 2
        assert "storage that they share" in str(error)
    assert names(stores[0]) == set()
    (left,) = names(stores[1])  # where only rank 2 can see it, it is garbage like that of any save that failed
    with pytest.raises(CheckpointNotFoundError):
        fs.open_checkpoint(URL, storage_options=handing(stores[1]))
    assert collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(stores[1])) == (left,)


def test_x5_ranks_on_storage_of_their_own_leave_the_old_checkpoint_as_it_was() -> None:
    stores = [memory_store() for _ in range(2)]
    fs.save({"w": np.zeros(3)}, URL, storage_options=handing(stores[0]))
    before = names(stores[0])

    def save(group: ThreadGroup) -> None:
        state = {"w": rows("w", group.rank, 2)}
        fs.save(state, URL, group=group, overwrite=True, storage_options=handing(stores[group.rank]))

    assert all(isinstance(error, CheckpointError) and error.rank == 1 for error in outcomes(2, save))
    assert names(stores[0]) == before
    fs.open_checkpoint(URL, storage_options=handing(stores[0])).verify()


# States.


def test_a_state_that_is_a_tuple_is_refused_on_all_ranks() -> None:
    """Plain values could not be put back into it."""
    store = RecordingStore(memory_store())
    fs.save([np.ones(2), 5], URL, storage_options=handing(store))
    store.operations.clear()
    for story in (fs.save, fs.load):

        def call(group: ThreadGroup, story: Callable[..., Any] = story) -> None:
            state = [np.ones(2), 5] if group.rank else (np.ones(2), 5)
            story(state, URL, group=group, storage_options=handing(store))

        errors = outcomes(2, call)
        assert all(isinstance(error, InvalidStateError) and error.rank == 0 for error in errors)
        assert all("the state is a tuple" in str(error) for error in errors)
    assert store.count(*CHANGING) == 0


def test_d27_a_list_is_a_state_and_its_plain_values_come_back() -> None:
    options = handing(memory_store())
    fs.save([np.ones(2), 5, {"lr": 0.1, "pair": (np.ones(1), 7)}, [1, 2]], URL, storage_options=options)
    target: list[Any] = [np.zeros(2), 0, {"lr": None, "pair": (np.zeros(1), None)}, []]
    fs.load(target, URL, strict="exact", storage_options=options)
    assert target[0].all()
    assert (target[1], target[2]["lr"], target[2]["pair"][1], target[3]) == (5, 0.1, 7, [1, 2])


@pytest.mark.parametrize(
    "state",
    [
        {"\ud800": np.ones(1)},
        {"layers": [{"\udfff": np.ones(1)}]},
        {"w": fs.ShardedTensor("\ud800", np.ones(1), (1,), (1,), (0,))},
        {"\ud800": 1},
        {"nested": {"\ud800": "plain"}},
    ],
    ids=["tensor", "nested tensor", "key of a shard", "plain value", "nested plain value"],
)
def test_x9_a_name_that_is_no_unicode_is_refused_on_all_ranks(state: Any) -> None:
    with pytest.raises(InvalidStateError, match="Unicode"):
        describe(state)
    store = RecordingStore(memory_store())

    def save(group: ThreadGroup) -> None:
        fs.save(state if group.rank else {"w": np.ones(1)}, URL, group=group, storage_options=handing(store))

    assert all(isinstance(error, InvalidStateError) and error.rank == 1 for error in outcomes(2, save))
    assert store.count() == 0


@pytest.mark.parametrize("wanted", [np.float32, np.int64, bool])
def test_d6_complex_values_are_never_cast_to_real_ones(wanted: Any) -> None:
    options = handing(memory_store())
    values = np.array([1 + 2j, 3 - 1j], np.complex64)
    fs.save({"w": values}, URL, storage_options=options)
    target = {"w": np.zeros(2, wanted)}
    for load in (
        lambda **given: fs.load(target, URL, cast=True, storage_options=options, **given),
        lambda **given: fs.reshard({"w": values}, target, cast=True, **given),
    ):
        with pytest.raises(StateMismatchError, match="imaginary") as error:
            load()
        assert error.value.mismatched == ("w",)
        assert load(strict=False).mismatched == ("w",)
    assert not target["w"].any()


def test_d6_real_values_are_cast_to_complex_ones_and_these_among_each_other() -> None:
    options = handing(memory_store())
    state = {"real": np.array([1.5, -2.0], np.float32), "complex": np.array([1 + 2j, 3 - 1j], np.complex128)}
    fs.save(state, URL, storage_options=options)
    target = {key: np.zeros(2, np.complex64) for key in state}
    fs.load(target, URL, cast=True, storage_options=options)
    assert {key: bits(values) for key, values in target.items()} == {
        key: bits(values.astype(np.complex64)) for key, values in state.items()
    }


# Strategies that are not registered.


class PrivateFormat(DistcpFormat):
    """A format that no registry knows."""

    name = "private"


def test_m1_a_strategy_object_needs_no_registration() -> None:
    options, private = handing(memory_store()), PrivateFormat()

    def save(group: ThreadGroup) -> fs.Checkpoint:
        return fs.save({"w": rows("w", group.rank, 2)}, URL, private, group=group, storage_options=options).result()

    for checkpoint in run(2, save):
        assert checkpoint.strategy == "private"
        assert (checkpoint["w"].read() == 1).all()
    target = {"w": np.zeros((4, 3))}
    fs.load(target, URL, private, storage_options=options)
    assert target["w"].all()
    assert fs.open_checkpoint(URL, strategy=private, storage_options=options)["w"].read().all()
    again = fs.save({"w": np.zeros(2)}, URL, private, overwrite=True, storage_options=options).result()
    assert again["w"].shape == (2,)


def test_m1_an_unregistered_strategy_must_be_given_again() -> None:
    options = handing(memory_store())
    fs.save({"w": np.ones(2)}, URL, PrivateFormat(), storage_options=options)
    for call in (
        lambda **given: fs.open_checkpoint(URL, storage_options=options, **given),
        lambda **given: fs.load({"w": np.zeros(2)}, URL, storage_options=options, **given),
    ):
        with pytest.raises(PluginError, match="private"):
            call()
        with pytest.raises(PluginError, match="in the format 'private', not 'distcp'"):
            call(strategy="distcp")


# The plan cache.


def fresh_plans(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(saving, "_PLANS", saving._PlanCache(size))


class PerRankPlans:
    """A plan cache for each thread's name, as ranks in processes of their own have them."""

    def __init__(self, size: int) -> None:
        self._caches: dict[str, saving._PlanCache] = {}
        self._size = size

    def of(self, thread: str) -> saving._PlanCache:
        """The cache of one rank."""
        return self._caches.setdefault(thread, saving._PlanCache(self._size))

    def forget(self, thread: str) -> None:
        """As if the process of this rank had been started again."""
        self._caches.pop(thread)

    def snapshot(self) -> Mapping[bytes, SavePlan]:
        return self.of(threading.current_thread().name).snapshot()

    def put(self, key: bytes, plan: SavePlan) -> None:
        self.of(threading.current_thread().name).put(key, plan)


def cached_save(store: Store, name: str, value: float) -> list[bool]:
    """Save a state on two ranks; whether each rank was asked for its survey. Proves that the values are stored."""

    def save(group: ThreadGroup) -> bool:
        counting = CountingGroup(group)
        state = {name: rows(name, group.rank, 2, value + group.rank), "step": value}
        fs.save(state, URL, group=counting, overwrite=True, storage_options=handing(store))
        return "survey" in counting.steps

    surveyed = run(2, save)
    checkpoint = fs.open_checkpoint(URL, storage_options=handing(store))
    assert set(checkpoint) == {name}
    assert bits(checkpoint[name].read()) == bits(np.repeat([value, value + 1], 6).reshape(4, 3))
    assert checkpoint.common == {"step": value}
    return surveyed


def test_x3_the_plan_cache_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_plans(monkeypatch, 3)
    store = memory_store()
    asked = [cached_save(store, name, i)[0] for i, name in enumerate("abcadadb")]
    assert asked == [True, True, True, False, True, False, False, True]


def test_x3_an_evicted_plan_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is saved, then nine others (the cache holds eight), then the first again."""
    fresh_plans(monkeypatch, 8)
    store = memory_store()
    for value, name in enumerate(["first", *map(str, range(9)), "first"]):
        assert cached_save(store, name, value) == [True, True]
    assert cached_save(store, "first", 99) == [False, False]


@pytest.mark.parametrize("cold", ["rank 0", "rank 1"])
def test_x3_a_rank_that_has_no_plan_makes_all_ranks_plan(monkeypatch: pytest.MonkeyPatch, cold: str) -> None:
    plans = PerRankPlans(8)
    monkeypatch.setattr(saving, "_PLANS", plans)
    store = memory_store()
    assert cached_save(store, "w", 1) == [True, True]
    assert cached_save(store, "w", 2) == [False, False]
    plans.forget(cold)
    assert cached_save(store, "w", 3) == [True, True]
    assert cached_save(store, "w", 4) == [False, False]


def test_x3_ranks_that_forget_different_plans_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of each pair has room for one plan only, so that what is known differs from rank to rank."""
    plans = PerRankPlans(8)
    plans._caches["rank 1"] = saving._PlanCache(1)
    monkeypatch.setattr(saving, "_PLANS", plans)
    store = memory_store()
    asked = [cached_save(store, name, i) for i, name in enumerate("abbaab")]
    assert asked == [[known] * 2 for known in (True, True, False, True, False, True)]
