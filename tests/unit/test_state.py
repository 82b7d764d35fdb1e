"""Flattening a nested state and putting plain values back."""

from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.plain import MAX_DEPTH
from flexstore.core.state import Leaf, flatten, restore
from flexstore.errors import InvalidStateError, KeyCollisionError, UnsupportedValueError


class Tensor:
    """Stands for a tensor of some framework."""


def is_tensor(value):
    return isinstance(value, Tensor)


def names(state):
    flat = flatten(state, is_tensor)
    return set(flat.tensors), {name: leaf.value for name, leaf in flat.plain.items()}


def test_d27_nested_dicts_lists_and_scalars_have_dotted_names():
    weight = Tensor()
    state = {"model": {"w": weight, "b": None}, "opt": [{"m": weight, "step": 3}, 0.5], "lr": 1e-3}
    flat = flatten(state, is_tensor)
    assert flat.tensors == {
        "model.w": Leaf(("model", "w"), weight),
        "opt.0.m": Leaf(("opt", "0", "m"), weight),
    }
    assert flat.plain == {
        "model.b": (("model", "b"), None),
        "opt.0.step": (("opt", "0", "step"), 3),
        "opt.1": (("opt", "1"), 0.5),
        "lr": (("lr",), 1e-3),
    }


def test_a_dot_in_a_key_is_part_of_the_name():
    assert flatten({"a.b": Tensor()}, is_tensor).tensors["a.b"].path == ("a.b",)


def test_containers_without_tensors():
    state = {"betas": (0.9, [0.99]), "empty": {}, "none": [], "deep": {"x": {"y": 1}}, "by_id": {0: "a", (1, 2): "b"}}
    assert names(state) == (
        set(),
        {"betas": (0.9, [0.99]), "empty": {}, "none": [], "deep.x.y": 1, "by_id": {0: "a", (1, 2): "b"}},
    )


def test_the_top_may_be_a_list_or_empty():
    assert names([Tensor(), 2]) == ({"0"}, {"1": 2})
    assert names([1, 2]) == (set(), {"0": 1, "1": 2})
    assert names({}) == (set(), {})


@pytest.mark.parametrize("state", [3, None, Tensor(), {1: 2}, {1: Tensor()}, {"a": {1: [Tensor()]}}])
def test_states_that_cannot_be_named_are_refused(state):
    with pytest.raises(InvalidStateError):
        flatten(state, is_tensor)


@pytest.mark.parametrize(
    "state",
    [{"a.b": Tensor(), "a": {"b": Tensor()}}, {"a.b": 1, "a": {"b": Tensor()}}, {"a": {"b": 1}, "a.b": 1}],
)
def test_d16_two_values_under_one_name_are_refused_with_both_paths(state):
    with pytest.raises(KeyCollisionError) as caught:
        flatten(state, is_tensor)
    assert caught.value.key == "a.b"
    assert "a/b" in str(caught.value)
    assert " a.b " in str(caught.value)


def test_r4_unsupported_leaves_are_refused_with_their_path():
    with pytest.raises(UnsupportedValueError, match="object") as caught:
        flatten({"a": [Tensor(), {"b": object()}]}, is_tensor)
    assert caught.value.key == "a.1.b"


def cyclic_list():
    state = []
    state.append(state)
    return {"a": state}


def cyclic_dict():
    state = {"t": Tensor()}
    state["a"] = state
    return state


def cyclic_below_a_tensor():
    state = [Tensor()]
    state.append(state)
    return state


@pytest.mark.parametrize("make", [cyclic_list, cyclic_dict, cyclic_below_a_tensor])
def test_a_container_that_holds_itself_is_refused(make):
    with pytest.raises(InvalidStateError, match="contain itself"):
        flatten(make(), is_tensor)


def test_nesting_is_bounded():
    state = Tensor()
    for _ in range(MAX_DEPTH):
        state = {"a": state}
    assert len(flatten(state, is_tensor).tensors) == 1
    with pytest.raises(InvalidStateError, match="64 levels"):
        flatten({"a": state}, is_tensor)


def test_restore_fills_dicts_and_lists_in_place_and_rebuilds_tuples():
    weight = Tensor()
    pair = namedtuple("pair", "tensor step")
    state = {"opt": [{"w": weight, "step": 0}, 1], "pair": pair(weight, 0), "both": (weight, 0), "betas": (0, 0)}
    opt, group = state["opt"], state["opt"][0]
    values = {"opt.0.step": 7, "opt.1": 8, "pair.1": 9, "both.1": 10, "betas": (0.9, 0.99), "elsewhere": 11}
    assert restore(state, values) is state
    assert state == {
        "opt": [{"w": weight, "step": 7}, 8],
        "pair": pair(weight, 9),
        "both": (weight, 10),
        "betas": (0.9, 0.99),
    }
    assert isinstance(state["pair"], pair)
    assert state["opt"] is opt
    assert opt[0] is group


def test_restore_returns_a_changed_tuple():
    weight = Tensor()
    assert restore((weight, 1), {"1": 2}) == (weight, 2)


states = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.recursive(
        st.integers() | st.builds(Tensor),
        lambda inner: (
            st.dictionaries(st.text("abc", min_size=1, max_size=3), inner)
            | st.lists(inner)
            | st.lists(inner).map(tuple)
        ),
        max_leaves=12,
    ),
)


@given(states)
def test_every_plain_value_can_be_put_back(state):
    flat = flatten(state, is_tensor)
    changed = {name: ("new", name) for name in flat.plain}
    restore(state, changed)
    seen = flatten(state, lambda value: is_tensor(value) or (isinstance(value, tuple) and value[:1] == ("new",)))
    assert {name: leaf.value for name, leaf in seen.tensors.items() if name in changed} == changed
    assert seen.plain == {}
