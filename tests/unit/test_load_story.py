"""What a load promises, told as users meet it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.core.dtypes import DTYPES
from flexstore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    GroupTimeoutError,
    InvalidStateError,
    PluginError,
    StateMismatchError,
)
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import FaultyStore, InjectedFault, RecordingStore, expected, flip_bit
from tests.stories_kit import STRATEGIES, URL, bits, handing, memory_store, names, outcomes

pytestmark = pytest.mark.usefixtures("handed")

MANIFEST_ONLY = {"flexstore.json"}


def rows(key: str, local: np.ndarray, start: int, total: int, **fields: Any) -> fs.ShardedTensor:
    """Some rows of a tensor."""
    rest = local.shape[1:]
    return fs.ShardedTensor(key, local, local.shape, (total, *rest), (start, *(0,) * len(rest)), **fields)


def saved(state: dict[str, Any], strategy: str = "distcp") -> RecordingStore:
    """A store with the state's checkpoint; what saving it took is forgotten."""
    store = RecordingStore(memory_store())
    fs.save(state, URL, strategy, storage_options=handing(store))
    store.operations.clear()
    return store


def touched(store: RecordingStore) -> set[str]:
    """The objects that were looked into."""
    return {operation.name for operation in store.operations if operation.verb in ("get", "get_into")}


def test_nothing_published_is_no_checkpoint(tmp_path: Any) -> None:
    for folder in (tmp_path, tmp_path / "never made"):
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint is published"):
            fs.load({"w": np.ones(2)}, folder)
    results = outcomes(3, lambda group: fs.load({}, tmp_path, group=group))
    assert all(isinstance(error, CheckpointNotFoundError) for error in results)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d27_nested_state_with_plain_values_and_flattened_targets(strategy: str) -> None:
    """One process, dicts in lists in dicts, every kind of plain value, and targets that are slices of a flat buffer."""
    plain = {
        "lr": 0.1,
        "step": 7,
        "name": "é",
        "flag": True,
        "none": None,
        "raw": b"\x00\xff",
        "deep": {"list": [1, [2.5]]},
    }
    weight, scale = expected("w", (4, 3, 2), "float32"), expected("s", (), "int64")
    store = saved({"model": {"layers": [{"w": weight}, {"s": scale}]}, "optimizer": plain}, strategy)
    buffer = np.full(30, 9, np.float32)
    halves = [
        fs.ShardedTensor(
            "model.layers.0.w", part, (4, 3, 2), (4, 3, 2), (0, 0, 0), is_flattened=True, flattened_range=bounds
        )
        for part, bounds in ((buffer[:11], (0, 11)), (buffer[11:], (11, 24)))
    ]
    blank = {**dict.fromkeys(plain, 0), "deep": {"list": []}}
    target = {"model": {"layers": [{"w": halves}, {"s": np.zeros((), np.int64)}]}, "optimizer": blank}
    report = fs.load(target, URL, strict="exact", storage_options=handing(store))
    assert (report.missing, report.unexpected, report.mismatched) == ((), (), ())
    assert bits(buffer) == bits(np.append(weight.ravel(), np.full(6, 9, np.float32)))
    assert target["model"]["layers"][1]["s"] == scale
    assert target["optimizer"] == plain
    assert [type(value) for value in target["optimizer"].values()] == [type(value) for value in plain.values()]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", [True, False, "exact"])
def test_d18_m10_e9_missing_and_unexpected_names_are_told_in_full(strategy: str, mode: Any) -> None:
    """The same lists on all ranks, although each rank wants something else; nothing was read if the load is refused."""
    store = saved({"both": np.ones(3), "spare": {"w": np.ones(2), "n": 5}, "old": 1}, strategy)

    def load(group: ThreadGroup) -> Any:
        mine = {0: {"both": np.zeros(3), "extra": 1}, 1: {"new": np.zeros(2), "old": 0}, 2: {}}[group.rank]
        report = fs.load(mine, URL, group=group, strict=mode, storage_options=handing(store))
        assert (mine["both"] == 1).all() if group.rank == 0 else True
        return report

    for result in outcomes(3, load):
        assert result.missing == ("extra", "new")
        assert result.unexpected == ("spare.n", "spare.w")
        assert result.mismatched == ()
        assert isinstance(result, StateMismatchError) == (mode is not False)
        if mode is not False:
            assert all(name in str(result) for name in ("extra", "new", "spare.n"))
    if mode is not False:
        assert touched(store) == MANIFEST_ONLY


def test_m10_only_exact_refuses_what_nobody_wants() -> None:
    options = handing(saved({"a": np.ones(2), "b": np.ones(2)}))
    assert fs.load({"a": np.zeros(2)}, URL, storage_options=options).unexpected == ("b",)
    with pytest.raises(StateMismatchError, match="unexpected") as error:
        fs.load({"a": np.zeros(2)}, URL, strict="exact", storage_options=options)
    assert error.value.unexpected == ("b",)


def test_d18_a_long_list_is_whole_in_the_attributes_and_short_in_the_text() -> None:
    options = handing(saved({"a": np.ones(2)}))
    wanted = {f"missing{i:03d}": np.zeros(1) for i in range(100)}
    with pytest.raises(StateMismatchError, match="and 80 more") as error:
        fs.load(wanted, URL, storage_options=options)
    assert error.value.missing == tuple(sorted(wanted))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(4, 3), (12,), (3, 4, 1), (2, 4), ()])
def test_d7_another_shape_is_refused_before_any_byte_moves(strategy: str, shape: tuple[int, ...]) -> None:
    store = saved({"w": np.ones((3, 4), np.float32), "b": np.ones(3)}, strategy)
    target = {"w": np.zeros(shape, np.float32), "b": np.zeros(3)}
    with pytest.raises(StateMismatchError, match="shape") as error:
        fs.load(target, URL, cast=True, storage_options=handing(store))
    assert error.value.mismatched == ("w",)
    assert touched(store) == MANIFEST_ONLY
    assert not target["b"].any()
    assert fs.load(target, URL, strict=False, storage_options=handing(store)).mismatched == ("w",)
    assert target["b"].all()
    assert not target["w"].any()


@pytest.mark.parametrize("rank", [0, 1])
def test_d7_all_ranks_refuse_what_does_not_fit_on_one(rank: int) -> None:
    store = saved({"w": np.ones((3, 4))})

    def load(group: ThreadGroup) -> None:
        fs.load({"w": np.zeros((3, 4 + (group.rank == rank)))}, URL, group=group, storage_options=handing(store))

    results = outcomes(2, load)
    assert all(isinstance(error, StateMismatchError) and error.mismatched == ("w",) for error in results)
    assert touched(store) == MANIFEST_ONLY


@pytest.mark.parametrize(("stored", "wanted"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("int64", "float16")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d5_d6_another_dtype_is_refused_or_really_converted(strategy: str, stored: str, wanted: str) -> None:
    values = expected("w", (5, 7), stored) if stored != "int64" else np.arange(35).reshape(5, 7)
    store = saved({"w": values}, strategy)
    target = {"w": np.zeros((5, 7), DTYPES[wanted].numpy)}
    with pytest.raises(StateMismatchError, match=f"dtype {stored} in the checkpoint, {wanted} in the state"):
        fs.load(target, URL, storage_options=handing(store))
    assert touched(store) == MANIFEST_ONLY
    fs.load(target, URL, cast=True, storage_options=handing(store))
    assert bits(target["w"]) == bits(values.astype(DTYPES[wanted].numpy))


def test_d6_a_cast_reaches_flattened_and_strided_memory() -> None:
    values = expected("w", (3, 8), "float32")
    options = handing(saved({"w": values}))
    flat, wide = np.zeros(9), np.zeros((3, 16))
    tail = fs.ShardedTensor("w", flat, (3, 8), (3, 8), (0, 0), is_flattened=True, flattened_range=(15, 24))
    run(2, lambda g: fs.load({"w": (tail, wide[:, ::2])[g.rank]}, URL, group=g, cast=True, storage_options=options))
    assert bits(flat) == bits(values.ravel()[15:].astype(np.float64))
    assert bits(wide[:, ::2]) == bits(values.astype(np.float64))
    assert not wide[:, 1::2].any()


def test_r6_a_transposed_head_never_loads_silently() -> None:
    """A square head has the same shape either way: only the declared axis tells."""
    head = np.arange(16.0).reshape(4, 4)
    options = handing(saved({"head": rows("head", head, 0, 4, declared_axis=1)}))
    for axis, accepted in ((1, True), (None, True), (0, False)):
        target = {"head": rows("head", np.zeros((4, 4)), 0, 4, declared_axis=axis)}
        report = fs.load(target, URL, strict=False, storage_options=options)
        assert report.mismatched == (() if accepted else ("head",))
        assert target["head"].local_tensor.any() == accepted
    with pytest.raises(StateMismatchError, match="declared axis 1 in the checkpoint, 0 in the state"):
        fs.load(target, URL, storage_options=options)


def test_a_tensor_and_a_plain_value_of_one_name_do_not_match() -> None:
    options = handing(saved({"a": np.ones(2), "b": 5}))
    target = {"a": 0, "b": np.zeros(2)}
    assert fs.load(target, URL, strict=False, storage_options=options).mismatched == ("a", "b")
    assert target["a"] == 0


def test_e4_e5_e7_none_and_every_dtype_come_back_as_they_are() -> None:
    for strategy in STRATEGIES:
        dtypes = [name for name in DTYPES if (strategy, name) != ("safetensors", "complex128")]
        state = {name: expected(name, (3, 5), name) for name in dtypes}
        store = saved(state | {"bias": None}, strategy)
        target: dict[str, Any] = {name: np.zeros_like(values) for name, values in state.items()}
        fs.load(target | {"bias": None}, URL, strict="exact", storage_options=handing(store))
        assert {name: bits(values) for name, values in target.items()} == {n: bits(v) for n, v in state.items()}


@pytest.mark.parametrize("stale", [".metadata.lock", "0.metadata.lock", ".flexstore-1-0123456789abcdef.tmp", "x.tmp"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d22_files_left_behind_harm_nothing(strategy: str, stale: str, tmp_path: Any) -> None:
    (tmp_path / stale).write_bytes(b"left by a process that died")
    fs.save({"w": np.arange(3)}, tmp_path, strategy)
    fs.save({"w": np.arange(3) + 1}, tmp_path, strategy, overwrite=True)
    target = {"w": np.zeros(3, int)}
    fs.load(target, tmp_path)
    assert (target["w"] == [1, 2, 3]).all()
    fs.open_checkpoint(tmp_path).verify()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d23_a_failed_load_leaves_nothing_behind(strategy: str) -> None:
    """Failures of every kind, each followed by a load that works, on the same ranks and the same state."""
    values = {"a": expected("a", (6, 4), "float32"), "b": expected("b", (3,), "int16"), "step": 3}
    store = saved(values, strategy)
    chunk = fs.open_checkpoint(URL, storage_options=handing(store))["a"].chunks[0]
    flip = chunk.file, 8 * chunk.byte_offset + 3

    def work(group: ThreadGroup) -> None:
        target: dict[str, Any] = {"a": np.zeros((6, 4), np.float32), "b": np.zeros(3, np.int16), "step": 0}

        def load(wanted: dict[str, Any], given: Any) -> None:
            fs.load(wanted, URL, group=group, storage_options=handing(given))

        def check() -> None:
            target["a"][:], target["b"][:], target["step"] = 0, 0, 0
            load(target, store)
            assert bits(target["a"]) == bits(values["a"])
            assert bits(target["b"]) == bits(values["b"])
            assert target["step"] == 3

        for failing, error in (
            (lambda: load(target | {"none": np.ones(1)}, store), StateMismatchError),
            (lambda: load(target | {"a": np.zeros((4, 6), np.float32)}, store), StateMismatchError),
            (lambda: load(target, FaultyStore(store.inner, 1, verbs=("get_into",))), InjectedFault),
            (lambda: load(target, FaultyStore(store.inner, 1, verbs=("get",))), InjectedFault),
            (lambda: load(target, memory_store()), CheckpointNotFoundError),
        ):
            with pytest.raises(error):
                failing()
            check()
        group.all_gather("flip", flip_bit(store.inner, *flip) if group.rank == 0 else None)
        with pytest.raises(CorruptCheckpointError) as damage:
            load(target, store)
        assert damage.value.key == "a"
        assert damage.value.file == chunk.file
        group.all_gather("flip back", flip_bit(store.inner, *flip) if group.rank == 0 else None)
        check()

    run(2, work)


def test_d24_a_load_that_only_rank_0_calls_names_the_others() -> None:
    options = handing(saved({"w": np.ones(3)}))

    def load(group: ThreadGroup) -> None:
        if group.rank == 0:
            fs.load({"w": np.zeros(3)}, URL, group=group, storage_options=options)

    error, _ = outcomes(2, load)
    assert isinstance(error, GroupTimeoutError)
    assert error.absent == (1,)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_m1_the_format_is_detected_and_naming_it_asserts_it(strategy: str) -> None:
    options = handing(saved({"w": np.ones(3)}, strategy))
    for name in STRATEGIES:
        target = {"w": np.zeros(3)}
        if name == strategy:
            fs.load(target, URL, name, storage_options=options)
            assert target["w"].all()
        else:
            with pytest.raises(PluginError, match=f"in the format '{strategy}', not '{name}'"):
                fs.load(target, URL, name, storage_options=options)


@pytest.mark.parametrize(("layers", "stages"), [(5, 2), (7, 3), (1, 3)])
def test_e17_e10_odd_numbers_of_layers_move_between_pipelines(layers: int, stages: int) -> None:
    """R7: stages hold layers of their own, as many as fall to them, and any other number of stages loads them."""
    options = handing(memory_store())

    def part(rank: int, size: int, *, fill: bool) -> dict[str, Any]:
        mine = np.array_split(np.arange(layers), size)[rank].tolist()
        keys = [f"layers.{layer}.w" for layer in mine]
        return {key: expected(key, (3, 3), "float32") if fill else np.zeros((3, 3), np.float32) for key in keys}

    run(stages, lambda g: fs.save(part(g.rank, stages, fill=True), URL, group=g, storage_options=options))
    for other in (1, 2, 4):

        def load(group: ThreadGroup, size: int = other) -> None:
            target = part(group.rank, size, fill=False)
            report = fs.load(target, URL, group=group, strict="exact", storage_options=options)
            assert report.unexpected == ()
            assert {key: bits(values) for key, values in target.items()} == {
                key: bits(values) for key, values in part(group.rank, size, fill=True).items()
            }

        run(other, load)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_l3_l4_d28_d30_any_dict_of_tensors_is_a_state(strategy: str) -> None:
    """Any optimizer: factored moments, counters, flags; plain data parallelism needs nothing but the group."""
    state = OrderedDict(
        adafactor={"exp_avg_sq_row": np.ones(4), "exp_avg_sq_col": np.full(3, 2.0), "step": np.array(7)},
        lamb={"w_moment1_0": np.full((4, 3), 3.0, np.float32), "w_beta1_pow_acc_0": np.full(1, 0.9, np.float32)},
        lion={"sign": np.array([[True, False]] * 2), "rounds": np.arange(3, dtype=np.uint16)},
        schedule={"last_epoch": 3, "warmup": [1, 2, 3]},
    )
    options = handing(memory_store())
    run(2, lambda group: fs.save(state, URL, strategy, group=group, storage_options=options))

    def load(group: ThreadGroup) -> None:
        target: Any = {
            name: {key: np.zeros_like(v) if isinstance(v, np.ndarray) else None for key, v in part.items()}
            for name, part in state.items()
        }
        fs.load(target, URL, group=group, strict="exact", storage_options=options)
        assert target["schedule"] == state["schedule"]
        for name in ("adafactor", "lamb", "lion"):
            assert {key: bits(v) for key, v in target[name].items()} == {k: bits(v) for k, v in state[name].items()}

    run(3, load)


def test_e14_r9_a_replicated_state_loads_into_uneven_padded_slices_and_back() -> None:
    """Pure data parallelism to sharding V2: fused buffers, slices of one element and of none, padding that stays."""
    values = expected("w", (3, 5), "float32")
    bounds = ((0, 1), (1, 1), (1, 14), (14, 15))
    options, back = handing(memory_store()), handing(memory_store())
    run(2, lambda group: fs.save({"w": values}, URL, group=group, storage_options=options))

    def work(group: ThreadGroup) -> None:
        start, stop = bounds[group.rank]
        buffer = np.full(16, 9, np.float32)
        shard = fs.ShardedTensor("w", buffer, (3, 5), (3, 5), (0, 0), is_flattened=True, flattened_range=(start, stop))
        fs.load({"fused": shard}, URL, group=group, storage_options=options)
        assert bits(buffer[: stop - start]) == bits(values.ravel()[start:stop])
        assert (buffer[stop - start :] == 9).all()
        fs.save({"fused": shard}, URL, group=group, storage_options=back)

    run(4, work)
    assert bits(fs.open_checkpoint(URL, storage_options=back)["w"].read()) == bits(values)


def test_r5_progress_and_report_agree_with_what_the_store_was_asked() -> None:
    store = saved({"w": np.zeros((64, 1000), np.float32), "b": np.zeros(7)})
    seen: list[int] = []
    target = {"w": rows("w", np.zeros((16, 1000), np.float32), 16, 64)}
    report = fs.load(target, URL, verify=False, storage_options=handing(store), progress=seen.append)
    assert report.bytes_read == sum(seen) == store.nbytes("get_into") == 16 * 1000 * 4
    assert report.reads == len(seen) == store.count("get_into")
    assert report.seconds > 0


def test_read_only_memory_is_refused_before_anything_is_read() -> None:
    store = saved({"w": np.ones(3)})
    target = np.zeros(3)
    target.flags.writeable = False
    with pytest.raises(InvalidStateError, match="read-only"):
        fs.load({"w": target}, URL, storage_options=handing(store))
    assert touched(store) == MANIFEST_ONLY


def test_a_missing_data_file_is_named() -> None:
    store = saved({"w": np.ones(3)})
    file = fs.open_checkpoint(URL, storage_options=handing(store))["w"].chunks[0].file
    store.delete(file)
    with pytest.raises(CorruptCheckpointError, match="is missing") as error:
        fs.load({"w": np.zeros(3)}, URL, storage_options=handing(store))
    assert error.value.file == file
    assert file not in names(store)
