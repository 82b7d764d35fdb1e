"""What a save promises, told as users meet it."""

from __future__ import annotations

import inspect
import threading
import zlib
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.local import LocalStore
from flexstore.errors import (
    CheckpointExistsError,
    GroupTimeoutError,
    InvalidStateError,
    KeyCollisionError,
    ReplicaMismatchError,
    TilingError,
    UnsupportedValueError,
)
from flexstore.frameworks import describe
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import RecordingStore, expected
from tests.stories_kit import (
    STRATEGIES,
    URL,
    CountingGroup,
    bits,
    handing,
    memory_store,
    names,
    outcomes,
    published,
    stored,
)

pytestmark = pytest.mark.usefixtures("handed")


def rows(key: str, values: np.ndarray, rank: int, size: int) -> fs.ShardedTensor:
    """The rows of ``values`` that fall to a rank; the first ranks have one more where they do not divide evenly."""
    parts = np.array_split(np.arange(len(values)), size)[rank]
    start = int(parts[0]) if len(parts) else 0
    local = values[start : start + len(parts)]
    return fs.ShardedTensor(key, local, local.shape, values.shape, (start, *(0,) * (values.ndim - 1)))


def state_of(step: int) -> dict[str, Any]:
    """A model and an optimizer, nested."""
    return {
        "model": {"w": np.full((3, 4), step, np.float32), "layers": [{"b": np.full(2, step, np.int64)}]},
        "optimizer": {"w.moment1": np.full((3, 4), -step, np.float32), "lr": 0.1, "step": step, "betas": (0.9, 0.99)},
    }


@pytest.mark.parametrize("name", ["save", "load", "reshard", "open_checkpoint"])
def test_e3_the_parameters_of_the_stories_are_pinned(name: str) -> None:
    parameters = {
        "save": "state url strategy * group overwrite check_replicas storage_options budget_nbytes progress",
        "load": "state url strategy * group strict cast verify storage_options budget_nbytes progress",
        "reshard": "src_state dst_state * group strict cast check_replicas budget_nbytes",
        "open_checkpoint": "url * strategy storage_options",
    }[name].split()
    found = inspect.signature(getattr(fs, name)).parameters.values()
    positional = parameters[: parameters.index("*")]
    assert [p.name for p in found] == [name for name in parameters if name != "*"]
    assert [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD] == positional


@pytest.mark.parametrize("world_size", [1, 3])
def test_e2_f4_names_depend_neither_on_the_strategy_nor_on_the_ranks(world_size: int) -> None:
    found = set()
    for strategy in STRATEGIES:
        options = handing(memory_store())

        def save(group: ThreadGroup, strategy: str = strategy, options: dict[str, Any] = options) -> None:
            state = {
                "w": rows("w", np.ones((5, 2)), group.rank, group.size),
                "opt": {"w": {"m": np.ones(2)}, "step": 3},
            }
            fs.save(state, URL, strategy, group=group, storage_options=options)

        run(world_size, save)
        checkpoint = fs.open_checkpoint(URL, storage_options=options)
        found.add((*sorted(checkpoint), *sorted(checkpoint.common)))
    assert found == {("opt.w.m", "w", "opt.step")}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d12_d13_a_second_save_into_a_folder_is_refused_or_replaces_all(strategy: str, tmp_path: Any) -> None:
    fs.save(state_of(1), tmp_path, strategy)
    first = names(LocalStore(tmp_path))
    with pytest.raises(CheckpointExistsError, match="overwrite=True"):
        fs.save(state_of(2), tmp_path, strategy)
    assert names(LocalStore(tmp_path)) == first
    assert fs.open_checkpoint(tmp_path).common["optimizer.step"] == 1
    checkpoint = fs.save(state_of(2), tmp_path, strategy, overwrite=True).result()
    assert checkpoint.common["optimizer.step"] == 2
    data = {info.name for info in checkpoint.manifest.files if info.frame_crc is not None}
    assert not first & data
    assert names(LocalStore(tmp_path)) == {"flexstore.json", *(info.name for info in checkpoint.manifest.files)}
    target = state_of(0)
    fs.load(target, tmp_path, strict="exact")
    assert bits(target["model"]["w"]) == bits(state_of(2)["model"]["w"])
    assert target["optimizer"]["step"] == 2


def test_d12_an_overwrite_may_change_the_format(tmp_path: Any) -> None:
    for step, strategy in enumerate([*STRATEGIES, *STRATEGIES]):
        checkpoint = fs.save(state_of(step), tmp_path, strategy, overwrite=True).result()
        assert checkpoint.strategy == strategy
        assert names(LocalStore(tmp_path)) == {"flexstore.json", *(info.name for info in checkpoint.manifest.files)}
        assert stored(str(tmp_path))["model.w"] == bits(state_of(step)["model"]["w"])


def test_d14_a_hole_is_refused_on_all_ranks_before_any_byte_is_written() -> None:
    store = RecordingStore(memory_store())
    half = fs.ShardedTensor("w", np.ones((2, 3)), (2, 3), (4, 3), (0, 0))
    results = outcomes(2, lambda group: fs.save({"w": half}, URL, group=group, storage_options=handing(store)))
    assert all(isinstance(error, TilingError) and error.key == "w" for error in results)
    assert names(store) == set()
    assert store.count("put", "upload", "write") == 0


@pytest.mark.parametrize("other_rank", [False, True])
def test_d16_one_name_for_two_values_is_refused_before_any_byte_is_written(other_rank: bool) -> None:
    store = RecordingStore(memory_store())

    def save(group: ThreadGroup) -> None:
        flat, nested = {"a.b": np.ones(2)}, {"a": {"b": np.zeros(2)}}
        state = (flat, nested)[group.rank] if other_rank else flat | nested
        fs.save(state, URL, group=group, storage_options=handing(store))

    results = outcomes(2, save)
    assert all(isinstance(error, KeyCollisionError) and error.key == "a.b" for error in results)
    assert store.count("put", "upload", "write") == 0


@pytest.mark.parametrize("bad", [object(), {1, 2}, np.array(["text"]), fs])
def test_r4_what_is_no_value_is_refused_on_all_ranks(bad: Any) -> None:
    store = RecordingStore(memory_store())

    def save(group: ThreadGroup) -> None:
        state = {"w": rows("w", np.ones((4, 2)), group.rank, 2), "plain": np.ones(3)}
        fs.save(state | ({"bad": bad} if group.rank else {}), URL, group=group, storage_options=handing(store))

    results = outcomes(2, save)
    assert all(isinstance(error, UnsupportedValueError | TypeError) for error in results)
    assert {error.rank for error in results if isinstance(error, UnsupportedValueError)} == {1}
    assert store.count() == 0


def test_r4_shards_and_plain_tensors_may_be_mixed() -> None:
    options = handing(memory_store())
    whole = expected("w", (5, 3), "float32")

    def save(group: ThreadGroup) -> None:
        state = {"w": rows("w", whole, group.rank, 3), "plain": np.arange(4), "note": "mixed"}
        fs.save(state, URL, group=group, storage_options=options)

    run(3, save)
    assert stored(URL, storage_options=options) == {"w": bits(whole), "plain": bits(np.arange(4))}


@pytest.mark.parametrize(
    "differing",
    [
        lambda rank: np.zeros((2, 3 + rank)),
        lambda rank: np.zeros((2, 3), (np.float32, np.float64)[rank]),
        lambda rank: fs.ShardedTensor("w", np.zeros((2, 3)), (2, 3), (2, 3), (0, 0), declared_axis=rank),
    ],
    ids=["shape", "dtype", "declared_axis"],
)
def test_r2_r6_ranks_that_disagree_about_a_tensor_are_named(differing: Any) -> None:
    options = handing(memory_store())
    results = outcomes(2, lambda g: fs.save({"w": differing(g.rank)}, URL, group=g, storage_options=options))
    assert all(isinstance(error, InvalidStateError) and "ranks 0 and 1 disagree" in error.message for error in results)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_r7_f3_ranks_hold_what_they_like_and_replicas_are_stored_once(strategy: str) -> None:
    """A rank may hold nothing at all; scalars that all ranks have are one chunk of one file."""
    options = handing(memory_store())

    def save(group: ThreadGroup) -> None:
        states = [{"a": np.ones(3), "step": 5}, {}, {"b": np.full(2, 2.0)}, {"c": np.zeros((0, 4))}]
        state = states[group.rank] | ({"beta": np.array(0.9)} if group.rank != 1 else {})
        fs.save(state, URL, strategy, group=group, storage_options=options)

    run(4, save)
    checkpoint = fs.open_checkpoint(URL, storage_options=options)
    assert {key: tensor.shape for key, tensor in checkpoint.items()} == {"a": (3,), "b": (2,), "beta": (), "c": (0, 4)}
    assert {key: len(tensor.chunks) for key, tensor in checkpoint.items()} == {"a": 1, "b": 1, "beta": 1, "c": 0}
    assert checkpoint["beta"].read() == 0.9
    assert checkpoint.common == {"step": 5}


def test_e13_replicas_with_different_bytes_are_found() -> None:
    store = memory_store()

    def save(group: ThreadGroup, **options: Any) -> None:
        state = {"expert": np.full(3, 1 + (group.rank == 2)), "same": np.ones(3)}
        fs.save(state, URL, group=group, storage_options=handing(store), **options)

    results = outcomes(3, save)
    for error in results:
        assert isinstance(error, ReplicaMismatchError)
        assert error.key == "expert"
        assert "ranks" in error.message
        assert "2" in error.message
    assert "flexstore.json" not in names(store)
    assert outcomes(3, lambda group: save(group, check_replicas=False)) == [None] * 3
    assert fs.open_checkpoint(URL, storage_options=handing(store))["expert"].read().shape == (3,)


def test_plain_values_are_equal_on_all_ranks_or_an_error() -> None:
    options = handing(memory_store())
    results = outcomes(2, lambda g: fs.save({"step": g.rank}, URL, group=g, storage_options=options))
    assert all(isinstance(error, InvalidStateError) and error.key == "step" for error in results)


def test_l5_d24_a_save_that_only_rank_0_calls_ends_and_names_the_others() -> None:
    store, over = memory_store(), threading.Event()

    def save(group: ThreadGroup) -> None:
        if group.rank:
            over.wait(60)
            return
        try:
            fs.save({"w": np.ones(3)}, URL, group=group, storage_options=handing(store))
        finally:
            over.set()

    error, *others = outcomes(3, save, timeout=0.2)
    assert isinstance(error, GroupTimeoutError)
    assert error.absent == (1, 2)
    assert others == [None, None]
    assert names(store) == set()


def test_x2_what_changes_after_save_has_returned_is_stored_with_its_old_value() -> None:
    options = handing(memory_store())
    weight, flat = np.arange(6.0), np.arange(10)
    shard = fs.ShardedTensor("f", flat, (8,), (8,), (0,), is_flattened=True, flattened_range=(0, 8))
    pending = fs.save({"w": weight, "f": shard, "list": [1]}, URL, storage_options=options)
    weight[:] = flat[:] = -1
    assert pending.done()
    checkpoint = pending.result(timeout=0)
    assert bits(checkpoint["w"].read()) == bits(np.arange(6.0))
    assert bits(checkpoint["f"].read()) == bits(np.arange(8))


def test_x3_a_planned_save_is_cheaper_and_stores_the_values_of_today() -> None:
    options = handing(memory_store())

    def save(group: ThreadGroup, step: int) -> list[str]:
        counting = CountingGroup(group)
        state = {"x3": rows("x3", np.full((4, 3), step, np.float32), group.rank, group.size), "step": step}
        fs.save(state, URL, group=counting, overwrite=True, storage_options=options)
        return counting.steps

    taken = []
    for step in range(3):
        taken += run(2, lambda group, step=step: save(group, step))
        checkpoint = fs.open_checkpoint(URL, storage_options=options)
        assert bits(checkpoint["x3"].read()) == bits(np.full((4, 3), step, np.float32))
        assert checkpoint.common == {"step": step}
    first, again = taken[0], taken[2]
    assert taken == [first] * 2 + [again] * 4
    assert [name for name in first if name != "survey"] == again
    assert len(again) == len(first) - 1


@pytest.mark.parametrize(
    "changed",
    [
        {"x.3": np.ones((5, 3))},
        {"x.3": np.ones((4, 3), np.float16)},
        {"x.3": fs.ShardedTensor("x.3", np.ones((4, 3)), (4, 3), (4, 3), (0, 0), declared_axis=1)},
        {"x": {"3": np.ones((4, 3))}},
        {"x.3": np.ones((4, 3)), "more": np.ones(1)},
        {"x.3": np.ones((4, 3)), "plain": 1},
    ],
    ids=["shape", "dtype", "axis", "path", "another tensor", "another value"],
)
def test_x3_whatever_changes_the_plan_makes_a_new_one(changed: dict[str, Any]) -> None:
    options = handing(memory_store())
    fs.save({"x.3": np.zeros((4, 3))}, URL, storage_options=options)
    checkpoint = fs.save(changed, URL, overwrite=True, storage_options=options).result()
    described = describe(changed)
    assert sorted(checkpoint.manifest.tensors, key=lambda info: info.key) == sorted(
        described.infos, key=lambda info: info.key
    )
    assert all((tensor.read() == 1).all() for tensor in checkpoint.values())
    assert checkpoint.common == described.common


def test_x3_d16_a_reused_plan_still_refuses_a_plain_value_under_a_tensors_name() -> None:
    options = handing(memory_store())

    def state(common: Any) -> dict[str, Any]:
        return {"w": fs.ShardedTensor("opt.w", np.ones(2), (2,), (2,), (0,)), "opt": {"v": common}}

    fs.save(state(1), URL, storage_options=options)
    with pytest.raises(KeyCollisionError):
        fs.save(state(1) | {"opt": {"w": 1}}, URL, overwrite=True, storage_options=options)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x8_a_small_tensor_costs_bytes(strategy: str) -> None:
    store = memory_store()
    state = {f"layers.{i}.input_layernorm.weight": np.full(8, i, np.float32) for i in range(20_000)}
    fs.save(state, URL, strategy, storage_options=handing(store))
    document = published(store)
    assert len(zlib.compress(document)) < 16 * len(state)
    assert len(document) < 160 * len(state)
    fs.load(
        target := {key: np.zeros_like(values) for key, values in state.items()}, URL, storage_options=handing(store)
    )
    assert all(bits(target[key]) == bits(values) for key, values in state.items())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "key", ["../../outside", "/absolute", "a/../b", "__metadata__", "w@[0:1]", "é\n\"'", "0" * 300]
)
def test_x9_a_name_never_becomes_a_path(strategy: str, key: str, tmp_path: Any) -> None:
    folder = tmp_path / "inner" / "checkpoint"
    fs.save({key: np.arange(3), "step": 1}, folder, strategy)
    assert {path.name for path in tmp_path.iterdir()} == {"inner"}
    assert {path.name for path in (tmp_path / "inner").iterdir()} == {"checkpoint"}
    assert stored(str(folder)) == {key: bits(np.arange(3))}


def test_e4_e7_none_is_kept_and_takes_no_bytes() -> None:
    options = handing(memory_store())
    state = {"linear": {"weight": np.ones((2, 2), np.float16), "bias": None}}
    checkpoint = fs.save(state, URL, storage_options=options).result()
    assert set(checkpoint) == {"linear.weight"}
    assert checkpoint["linear.weight"].dtype.name == "float16"
    assert checkpoint.common == {"linear.bias": None}
    target = {"linear": {"weight": np.zeros((2, 2), np.float16), "bias": None}}
    fs.load(target, URL, strict="exact", storage_options=options)
    assert target["linear"]["bias"] is None
    empty = fs.save({}, URL, overwrite=True, storage_options=options).result()
    assert (len(empty), empty.common) == (0, {})
    assert fs.load({}, URL, strict="exact", storage_options=options).missing == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d26_a_group_of_one_rank_is_like_no_group(strategy: str) -> None:
    options = handing(memory_store())
    run(1, lambda group: fs.save(state_of(4), URL, strategy, group=group, storage_options=options))
    target = state_of(0)
    run(1, lambda group: fs.load(target, URL, group=group, strict="exact", storage_options=options))
    assert bits(target["model"]["layers"][0]["b"]) == bits(np.full(2, 4))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_large_item_that_is_not_contiguous_is_stored_right(strategy: str) -> None:
    """Larger than a window of an upload and than a checksum block, in every order that memory can have."""
    base = np.arange(3 * 1_100_003, dtype=np.float32).reshape(3, 1_100_003)
    state = {"turned": base.T, "every other": base[:, ::2], "backwards": base[::-1, ::-1], "plain": base}
    options = handing(memory_store())
    progress: list[int] = []
    pending = fs.save(state, URL, strategy, storage_options=options, budget_nbytes=0, progress=progress.append)
    checkpoint = pending.result()
    assert stored(URL, storage_options=options) == {key: bits(values) for key, values in state.items()}
    data = {chunk.file for tensor in checkpoint.values() for chunk in tensor.chunks}
    assert sum(progress) == sum(info.nbytes for info in checkpoint.manifest.files if info.name in data)
    target = {key: np.zeros_like(values) for key, values in state.items()}
    fs.load(target, URL, storage_options=options)
    assert all(bits(target[key]) == bits(values) for key, values in state.items())
