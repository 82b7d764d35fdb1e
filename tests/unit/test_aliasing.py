"""Targets that share memory: what a load and a reshard refuse, and what they fill (E6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import flexstore as fs
from flexstore.core.aliasing import is_same_memory, overlaps_itself, sharing
from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_of
from flexstore.core.region import Array, DeviceArray, HostArray, Region
from flexstore.errors import InvalidStateError
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import RecordingStore, expected
from tests.stories_kit import STRATEGIES, URL, bits, handing, memory_store, outcomes

pytestmark = pytest.mark.usefixtures("handed")

VALUES = expected("w", (6, 4), "float32")
OTHER = expected("v", (6, 4), "float32")


def region(array: Array, key: str = "w") -> Region:
    return Region(key, Box.whole(array.shape), HostArray(array, dtype_of(array.dtype)))


def saved(strategy: str = "distcp", **state: Any) -> RecordingStore:
    store = RecordingStore(memory_store())
    fs.save(state, URL, strategy, storage_options=handing(store))
    store.operations.clear()
    return store


Filler = Callable[[Any, ThreadGroup], fs.LoadReport]


def from_storage(state: dict[str, Any]) -> Filler:
    """Loads a state that lies in a store."""
    options = handing(saved(**state))
    return lambda target, group: fs.load(target, URL, group=group, storage_options=options)


def from_memory(state: dict[str, Any]) -> Filler:
    """Reshards a state that only rank 0 holds."""

    def fill(target: Any, group: ThreadGroup) -> fs.LoadReport:
        source = {} if group.rank else {key: values.copy() for key, values in state.items()}
        return fs.reshard(source, target, group=group)

    return fill


FILLERS = [from_storage, from_memory]


# What is refused.


def expanded() -> dict[str, Any]:
    return {"w": np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (6, 4), (0, 4))}


def windows() -> dict[str, Any]:
    return {"w": np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (6, 4), (4, 4))}


def shifted_slices() -> dict[str, Any]:
    base = np.zeros(28, np.float32)
    return {"w": base[:24].reshape(6, 4), "v": base[4:].reshape(6, 4)}


def turned() -> dict[str, Any]:
    base = np.zeros((6, 4), np.float32)
    return {"w": base, "v": base[::-1]}


def shards_of_one_key() -> dict[str, Any]:
    base = np.zeros((5, 4), np.float32)
    parts = [fs.ShardedTensor("w", base[i : i + 3], (3, 4), (6, 4), (at, 0)) for i, at in ((0, 0), (2, 3))]
    return {"w": parts}


def flattened_buffers() -> dict[str, Any]:
    """The ranges of a fused buffer that was laid out wrongly: one element too near."""
    buffer = np.zeros(47, np.float32)
    return {
        key: fs.ShardedTensor(key, buffer[at:], (6, 4), (6, 4), (0, 0), is_flattened=True, flattened_range=(0, 24))
        for key, at in (("w", 0), ("v", 23))
    }


def torch_expanded() -> dict[str, Any]:
    return {"w": torch.zeros(1, 4).expand(6, 4)}


@pytest.mark.parametrize(
    "make", [expanded, windows, shifted_slices, turned, shards_of_one_key, flattened_buffers, torch_expanded]
)
@pytest.mark.parametrize("source", FILLERS)
def test_targets_that_overlap_are_refused_on_all_ranks(source: Any, make: Callable[[], dict[str, Any]]) -> None:
    fill = source({"w": VALUES, "v": OTHER})
    targets = [{"w": np.zeros((6, 4), np.float32)}, make()]
    for error in outcomes(2, lambda group: fill(targets[group.rank], group)):
        assert isinstance(error, InvalidStateError)
        assert error.rank == 1
        assert error.key in ("w", "v")
        assert "memory" in error.message
    assert not targets[0]["w"].any()


def test_overlapping_targets_are_refused_before_any_data_is_read() -> None:
    store = saved(w=VALUES, v=OTHER)
    for make in (expanded, shifted_slices):
        with pytest.raises(InvalidStateError):
            fs.load(make(), URL, storage_options=handing(store))
    assert store.nbytes("get_into") == 0


def test_an_expanded_tensor_may_be_saved() -> None:
    """Reading one element for several is harmless."""
    options = handing(saved(w=np.broadcast_to(VALUES[0], (6, 4))))
    target = {"w": np.zeros((6, 4), np.float32)}
    fs.load(target, URL, storage_options=options)
    assert (target["w"] == VALUES[0]).all()


# What is filled.


def columns() -> tuple[Array, Array]:
    base = np.zeros((6, 8), np.float32)
    return base[:, ::2], base[:, 1::2]


def halves_of_rows() -> tuple[Array, Array]:
    base = np.zeros((6, 8), np.float32)
    return base[:, :4], base[:, 4:]


def blocks_of_columns_turned() -> tuple[Array, Array]:
    base = np.zeros((8, 6), np.float32)
    return base[:4].T, base[:3:-1].T


def neighbours() -> tuple[Array, Array]:
    base = np.zeros(48, np.float32)
    return base[:24].reshape(6, 4), base[24:].reshape(6, 4)


@pytest.mark.parametrize("make", [columns, halves_of_rows, blocks_of_columns_turned, neighbours])
@pytest.mark.parametrize("source", FILLERS)
def test_f2_parts_of_one_base_that_do_not_share_are_filled(source: Any, make: Any) -> None:
    fill = source({"w": VALUES, "v": OTHER})

    def load(group: ThreadGroup) -> None:
        w, v = make()
        fill({"w": w, "v": v}, group)
        assert bits(w) == bits(VALUES)
        assert bits(v) == bits(OTHER)

    run(2, load)


# Tied weights.


@pytest.mark.parametrize("source", FILLERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_e6_a_tied_weight_is_filled_if_both_names_hold_the_same(source: Any, ranks: int) -> None:
    fill = source({"embedding": VALUES, "head": VALUES, "b": OTHER[0]})

    def load(group: ThreadGroup) -> None:
        weight = np.zeros((6, 4), np.float32)
        target = {"embedding": weight, "b": np.zeros(4, np.float32), "head": weight}
        fill(target, group)
        assert target["embedding"] is target["head"] is weight
        assert bits(weight) == bits(VALUES)
        assert bits(target["b"]) == bits(OTHER[0])

    run(ranks, load)


@pytest.mark.parametrize("source", FILLERS)
@pytest.mark.parametrize("tied_on", [0, 1])
def test_e6_a_tied_weight_is_refused_on_all_ranks_if_the_names_hold_different_values(source: Any, tied_on: int) -> None:
    """Also if only one element differs, and only one rank ties them."""
    head = VALUES.copy()
    head[5, 3] += 1
    fill = source({"embedding": VALUES, "head": head})

    def load(group: ThreadGroup) -> None:
        weight = np.zeros((6, 4), np.float32)
        second = weight if group.rank == tied_on else np.zeros_like(weight)
        fill({"embedding": weight, "head": second}, group)

    for error in outcomes(2, load):
        assert isinstance(error, InvalidStateError)
        assert (error.rank, error.key) == (tied_on, "head")
        assert "another name" in error.message


@pytest.mark.parametrize("source", FILLERS)
def test_e6_every_further_name_of_a_tied_weight_is_checked(source: Any) -> None:
    fill = source({"a": VALUES, "b": VALUES, "c": OTHER})
    weight = np.zeros((6, 4), np.float32)
    run(1, lambda group: fill({"a": weight, "b": weight}, group))
    with pytest.raises(InvalidStateError, match="'c'"):
        run(1, lambda group: fill({"a": weight, "b": weight, "c": weight}, group))


@pytest.mark.parametrize("source", FILLERS)
@pytest.mark.parametrize("equal", [True, False])
def test_e6_tied_shards_may_lie_at_different_places_of_their_tensors(source: Any, equal: bool) -> None:
    """The embedding's rows are those of a larger head, further down in it."""
    head = np.vstack([OTHER, VALUES if equal else OTHER])
    fill = source({"embedding": VALUES, "head": head})
    weight = np.zeros((3, 4), np.float32)
    target = {
        "embedding": fs.ShardedTensor("embedding", weight, (3, 4), (6, 4), (2, 0)),
        "head": fs.ShardedTensor("head", weight, (3, 4), (12, 4), (8, 0)),
    }
    if equal:
        run(1, lambda group: fill(target, group))
        assert bits(weight) == bits(VALUES[2:5])
    else:
        with pytest.raises(InvalidStateError) as error:
            run(1, lambda group: fill(target, group))
        assert error.value.key == "head"


@pytest.mark.parametrize("source", FILLERS)
@pytest.mark.parametrize("equal", [True, False])
def test_e6_tied_flattened_slices_are_compared_too(source: Any, equal: bool) -> None:
    fill = source({"a": VALUES, "b": VALUES if equal else OTHER})
    buffer = np.zeros(15, np.float32)
    target = {
        key: fs.ShardedTensor(key, buffer, (6, 4), (6, 4), (0, 0), is_flattened=True, flattened_range=(3, 18))
        for key in "ab"
    }
    if equal:
        run(1, lambda group: fill(target, group))
        assert bits(buffer) == bits(VALUES.ravel()[3:18])
    else:
        with pytest.raises(InvalidStateError):
            run(1, lambda group: fill(target, group))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_e6_a_large_tied_weight_is_compared_in_parts_that_fit_the_budget(strategy: str) -> None:
    values = np.arange(600_000, dtype=np.float32).reshape(600, 1000)
    store = saved(strategy, a=values, b=values)
    weight = np.zeros_like(values)
    fs.load({"a": weight, "b": weight}, URL, budget_nbytes=1 << 20, storage_options=handing(store))
    assert bits(weight) == bits(values)
    other = values.copy()
    other[-1, -1] = 0
    store = saved(strategy, a=values, b=other)
    with pytest.raises(InvalidStateError) as error:
        fs.load({"a": weight, "b": weight}, URL, budget_nbytes=1 << 20, storage_options=handing(store))
    assert error.value.box is not None
    assert error.value.box.size < values.size


def test_e6_a_tied_state_is_saved_under_both_names_and_read_untied() -> None:
    options = handing(saved(embedding=VALUES, head=VALUES))
    target = {"embedding": np.zeros((6, 4), np.float32), "head": np.zeros((6, 4), np.float32)}
    fs.load(target, URL, strict="exact", storage_options=options)
    assert bits(target["embedding"]) == bits(target["head"]) == bits(VALUES)


def test_e6_d6_tied_weights_are_compared_after_the_cast() -> None:
    """What rounds to the same is the same."""
    nearly = np.nextafter(VALUES, np.float32(np.inf), dtype=np.float32)
    store = saved(a=VALUES, b=nearly)

    def load(dtype: Any) -> Array:
        weight = np.zeros((6, 4), dtype)
        fs.load({"a": weight, "b": weight}, URL, cast=True, storage_options=handing(store))
        return weight

    assert bits(load(np.float16)) == bits(VALUES.astype(np.float16)) == bits(nearly.astype(np.float16))
    with pytest.raises(InvalidStateError):
        load(np.float64)


# The questions themselves.


@st.composite
def views(draw: st.DrawFn) -> Array:
    """What slicing, transposing and reversing can make of an array."""
    base = draw(npst.arrays(np.int16, npst.array_shapes(max_dims=4, max_side=5), elements=st.just(0)))
    view = base[draw(npst.basic_indices(base.shape, allow_ellipsis=False, allow_newaxis=True))]
    view = np.asarray(view)
    return view.transpose(draw(st.permutations(range(view.ndim))))


@given(view=views())
def test_no_view_made_by_indexing_overlaps_itself(view: Array) -> None:
    assert not overlaps_itself(region(view))


@given(data=st.data())
def test_whatever_overlaps_itself_is_noticed(data: st.DataObject) -> None:
    """Against the addresses of all elements, for any strides; none may be missed."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = [2 * data.draw(st.integers(0, 12)) for _ in shape]
    view = np.lib.stride_tricks.as_strided(np.zeros(200, np.int16), shape, strides)
    at = sum(np.indices(shape)[axis] * stride for axis, stride in enumerate(strides))
    if len(np.unique(at)) < view.size:
        assert overlaps_itself(region(view))


@given(data=st.data())
def test_pairs_that_share_memory_are_those_with_a_byte_in_common(data: st.DataObject) -> None:
    base = np.zeros((6, 7), np.int16)
    places = np.arange(base.size).reshape(base.shape)
    indices = data.draw(st.lists(npst.basic_indices((6, 7), min_dims=1, allow_ellipsis=False), max_size=6))
    held = [(region(np.atleast_1d(base[i]), str(n)), set(places[i].ravel().tolist())) for n, i in enumerate(indices)]
    held = [(r, at) for r, at in held if at]
    split = data.draw(st.integers(0, len(held)))
    pairs = [(a, b) for n, a in enumerate(held) for b in held[n + 1 :]]
    among = {frozenset((a.key, b.key)) for (a, of_a), (b, of_b) in pairs if of_a & of_b}
    assert {frozenset((a.key, b.key)) for a, b in sharing([r for r, _ in held])} == among
    across = {(a.key, b.key) for a, of_a in held[:split] for b, of_b in held[split:] if of_a & of_b}
    found = sharing([r for r, _ in held[:split]], [r for r, _ in held[split:]])
    assert {(a.key, b.key) for a, b in found} == across


def test_the_same_memory_has_the_same_place_strides_and_type() -> None:
    base = np.zeros((4, 4), np.float32)
    assert is_same_memory(region(base), region(base[:], "v"))
    for other in (base.T, base[::-1], base[:2], base.view(np.int32), base.copy(), base.reshape(2, 8)):
        assert not is_same_memory(region(base), region(other, "v"))


def test_device_memory_is_left_alone() -> None:
    """Nothing can be said about it from the host."""
    base = np.zeros((2, 2), np.float32)
    device = DeviceArray((2, 2), dtype_of(base.dtype), base.__getitem__, base.__setitem__)
    one, other = (Region(key, Box.whole((2, 2)), device) for key in "wv")
    assert not overlaps_itself(one)
    assert not is_same_memory(one, other)
    assert list(sharing([one, other, region(base, "u")])) == []
    assert list(sharing([])) == []
