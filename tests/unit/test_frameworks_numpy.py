"""Describing states of numpy arrays and shards, and the rules that hold for all frameworks."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.region import HostArray
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError, KeyCollisionError, UnsupportedValueError
from flexstore.frameworks import build_sharded_state_dict, describe, framework_of, is_tensor, shard_weight


def rows(key, tensor, start, total, **fields):
    """A shard of whole rows."""
    shape = tensor.shape
    return ShardedTensor(key, tensor, shape, (total, *shape[1:]), (start, *(0 for _ in shape[1:])), **fields)


def only(state, **options):
    (region,) = describe(state, **options).regions
    return region


def test_d27_nested_state_with_plain_values():
    weight = np.arange(6.0).reshape(2, 3)
    found = describe({"model": {"w": weight}, "step": 3, "opt": {"lr": np.float32(0.5), "betas": (0.9, 0.99)}})
    (info,) = found.infos
    assert (info.key, info.dtype.name, info.shape, info.path) == ("model.w", "float64", (2, 3), ("model", "w"))
    assert [(region.key, region.box) for region in found.regions] == [("model.w", Box.whole((2, 3)))]
    assert np.shares_memory(found.regions[0].host(), weight)
    assert found.common == {"step": 3, "opt.lr": 0.5, "opt.betas": (0.9, 0.99)}
    assert found.common_paths == {"opt.lr": ("opt", "lr"), "opt.betas": ("opt", "betas")}


@pytest.mark.parametrize("key", ["E4", "E5", "E7"])
def test_e4_e5_e7_none_parameters_are_plain(key):
    found = describe({key: {"weight": np.zeros(2), "bias": None}})
    assert [info.key for info in found.infos] == [f"{key}.weight"]
    assert found.common == {f"{key}.bias": None}


@pytest.mark.parametrize(
    "array",
    [
        np.array(2.5),
        np.zeros((0, 3), np.int8),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::2],
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.ones(3, ml_dtypes.float8_e5m2),
        np.array([True, False]),
        np.ones(2, np.complex64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_memory_is_seen_without_a_copy(array):
    found = describe({"a": array}, writable=True)
    assert found.infos[0].dtype.numpy == array.dtype
    assert found.infos[0].shape == array.shape
    assert len(found.regions) == (array.size > 0)
    for region in found.regions:
        assert np.shares_memory(region.host(), array)
        assert region.host().strides == array.strides


def test_the_other_byte_order_is_converted_piece_by_piece():
    array = np.arange(12, dtype=">f4").reshape(3, 4)
    region = only({"a": array}, writable=True)
    assert region.host() is None
    part = Box((1, 1), (2, 2))
    fetched = region.fetch(part)
    assert fetched.dtype == np.dtype("<f4")
    assert fetched.tolist() == [[5, 6], [9, 10]]
    region.store(part, -fetched)
    assert array.tolist() == [[0, 1, 2, 3], [4, -5, -6, 7], [8, -9, -10, 11]]


def test_r3_a_flattened_shard_over_memory_without_a_host_view_of_many_dimensions():
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    shard = ShardedTensor("a", array, (4, 4), (4, 4), (0, 0), True, slice(2, 13))
    found = describe({"a": shard}, writable=True)
    whole = np.full((4, 4), -1, np.int32)
    for region in found.regions:
        whole[region.box.within((0, 0))] = region.fetch(region.box)
        region.store(region.box, 100 + region.fetch(region.box))
    assert whole.reshape(-1).tolist() == [-1, -1, *range(11), -1, -1, -1]
    assert array.reshape(-1).tolist() == [*range(100, 111), 11]


def test_read_only_memory_can_be_saved_but_not_loaded_into():
    array = np.zeros(3)
    array.flags.writeable = False
    assert only({"a": array}).nbytes == 24
    with pytest.raises(InvalidStateError, match="read-only") as caught:
        describe({"a": array}, writable=True)
    assert caught.value.key == "a"


@pytest.mark.parametrize(
    "array", [np.array(["x"]), np.array([None]), np.zeros(2, "M8[s]"), np.ma.masked_array([1, 2], [True, False])]
)
def test_r4_arrays_that_are_no_tensors_are_refused(array):
    with pytest.raises(UnsupportedValueError) as caught:
        describe({"layer": {"a": array}})
    assert caught.value.key == "layer.a"


def test_r4_shards_and_plain_tensors_mix():
    state = {"model": {"w": rows("model.w", np.zeros((2, 3)), 2, 4), "scale": np.ones(1)}, "n": 1}
    found = describe(state)
    assert [(r.key, str(r.box)) for r in found.regions] == [("model.w", "[2:4, 0:3]"), ("model.scale", "[0:1]")]


@pytest.mark.parametrize("leaf", [object(), {1, 2}, [np.zeros(1), object()]])
def test_r4_unsupported_leaves_are_refused_naming_their_path(leaf):
    with pytest.raises(UnsupportedValueError) as caught:
        describe({"a": {"b": leaf}})
    assert caught.value.key.startswith("a.b")


def test_r4_a_shard_of_no_tensor_is_refused():
    broken = ShardedTensor("a", [1.0, 2.0], (2,), (2,), (0,))
    for state in ({"a": broken}, {"a": [broken]}):
        with pytest.raises(UnsupportedValueError, match=r"ShardedTensor|local_tensor is a list"):
            describe(state)


def test_a_shard_is_stored_under_its_key_not_its_path():
    found = describe({"layers": {"0": rows("decoder.w", np.zeros((1, 2)), 0, 2)}})
    (info,) = found.infos
    assert (info.key, info.path) == ("decoder.w", None)


def test_shards_of_one_key_may_sit_in_a_list_or_apart():
    parts = [rows("a.w", np.full((1, 2), i), i, 3) for i in range(3)]
    for state in ({"a": {"w": parts}}, {"x": parts[0], "y": parts[1:]}, dict(zip("xyz", parts, strict=True))):
        found = describe(state)
        assert [info.key for info in found.infos] == ["a.w"]
        assert [region.box.offset[0] for region in found.regions] == [0, 1, 2]
        assert len(found.shards) == 3
    assert describe({"a": {"w": parts}}).infos[0].path == ("a", "w")


def test_a_list_of_shards_of_several_keys_is_a_list():
    found = describe({"pair": [rows("a", np.zeros((1, 2)), 0, 1), rows("b", np.zeros((1, 2)), 0, 1)]})
    assert [info.key for info in found.infos] == ["a", "b"]


def test_the_same_tensor_twice_is_taken_once():
    tensor = np.zeros((1, 2))
    state = {"x": rows("w", tensor, 0, 2), "y": [rows("w", tensor, 0, 2), rows("w", tensor, 0, 2)]}
    found = describe(state)
    assert len(found.regions) == len(found.shards) == len(found.infos) == 1


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": np.zeros(2), "a": {"b": np.zeros(2)}},
        {"x": rows("w", np.zeros((1, 2)), 0, 2), "y": rows("w", np.zeros((1, 2)), 0, 2)},
        {"w": np.zeros((2, 2)), "y": rows("w", np.zeros((2, 2)), 0, 2)},
        {"w": 3, "y": rows("w", np.zeros((2, 2)), 0, 2)},
    ],
    ids=["paths", "shards", "tensor and shard", "plain and shard"],
)
def test_d16_two_values_under_one_name_are_refused(state):
    with pytest.raises(KeyCollisionError) as caught:
        describe(state)
    assert caught.value.key in {"a.b", "w"}
    assert " and " in caught.value.message


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (rows("w", np.zeros((1, 2)), 1, 3), "global_shape"),
        (rows("w", np.zeros((1, 2), np.float32), 1, 2), "dtype"),
        (rows("w", np.zeros((1, 2)), 1, 2, declared_axis=1), "declared_axis"),
    ],
)
def test_r2_shards_of_one_key_must_agree(other, word):
    with pytest.raises(InvalidStateError, match=word) as caught:
        describe({"one": rows("w", np.zeros((1, 2)), 0, 2, declared_axis=0), "two": other})
    assert caught.value.key == "w"
    assert "one" in caught.value.message
    assert "two" in caught.value.message


def test_r6_the_declared_axis_is_carried():
    head = shard_weight("head", np.zeros((4, 2)), 1, 0, 2, declare_axis=True)
    plain = rows("head", np.zeros((4, 2)), 0, 4)
    second = ShardedTensor("head", plain.local_tensor, (4, 2), (4, 4), (0, 2))
    for parts in ([head, second], [second, head]):
        assert describe({"head": parts}).infos[0].declared_axis == 1


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (ShardedTensor("w", np.zeros((2, 2)), (2, 3), (2, 3), (0, 0)), "shape"),
        (ShardedTensor("w", np.zeros(6), (2, 3), (2, 3), (0, 0)), "shape"),
        (ShardedTensor("w", np.zeros(3), (2, 3), (2, 3), (0, 0), True, (1, 5)), "needs 4"),
    ],
)
def test_r2_a_shard_must_fit_its_tensor(shard, message):
    with pytest.raises(InvalidStateError, match=message):
        describe({"w": shard})


def test_r9_padding_is_not_part_of_a_flattened_shard():
    buffer = np.arange(8.0)
    found = describe({"w": ShardedTensor("w", buffer, (2, 3), (4, 3), (2, 0), True, slice(1, 6))}, writable=True)
    assert [str(region.box) for region in found.regions] == ["[2:3, 1:3]", "[3:4, 0:3]"]
    assert np.concatenate([region.host().reshape(-1) for region in found.regions]).tolist() == [0, 1, 2, 3, 4]
    assert all(np.shares_memory(region.host(), buffer) for region in found.regions)


@pytest.mark.parametrize("buffer", [np.zeros(0), np.zeros(4)])
def test_r9_an_empty_slice_is_known_but_holds_nothing(buffer):
    empty = ShardedTensor("w", buffer, (2, 3), (4, 3), (2, 0), True, slice(4, 4))
    found = describe({"w": [empty, empty, ShardedTensor("w", buffer, (2, 3), (4, 3), (2, 0), True, slice(4, 4))]})
    assert [info.shape for info in found.infos] == [(4, 3)]
    assert found.regions == []


def test_d29_r9_a_slice_of_one_element_and_a_flattened_scalar():
    one = ShardedTensor("w", np.array([7.0]), (2, 3), (4, 3), (2, 0), True, slice(4, 5))
    scalar = ShardedTensor("s", np.array([1.0]), (), (), (), True, slice(0, 1))
    found = describe({"w": one, "s": scalar})
    assert [(str(region.box), region.host().tolist()) for region in found.regions] == [
        ("[3:4, 1:2]", [[7.0]]),
        ("[]", 1.0),
    ]


class ShardedWeight:
    """Has the attributes of Paddle's class of that name, and none more."""

    def __init__(self, key, local_tensor, local_shape, global_shape, global_offset, flattened_range=None):
        self.key, self.local_tensor, self.local_shape = key, local_tensor, local_shape
        self.global_shape, self.global_offset = global_shape, global_offset
        self.is_flattened, self.flattened_range = flattened_range is not None, flattened_range


def test_shards_are_recognised_by_their_attributes():
    weight = ShardedWeight("w", np.arange(4.0), [2, 3], [4, 3], [2, 0], slice(0, 4))
    assert is_tensor(weight)
    found = describe({"w": weight})
    assert [str(region.box) for region in found.regions] == ["[2:3, 0:3]", "[3:4, 0:1]"]
    with pytest.raises(InvalidStateError) as caught:
        describe({"w": ShardedWeight("w", np.zeros(4), (4,), (4,), (2,))})
    assert caught.value.key == "w"


def test_framework_of():
    assert framework_of(np.zeros(1)).name == "numpy"
    assert framework_of(rows("a", np.zeros(1), 0, 1)).name == "numpy"
    assert framework_of(np.float32(1)) is None
    assert framework_of([np.zeros(1)]) is None
    assert isinstance(framework_of(np.zeros(1)).local_array(np.zeros(1)), HostArray)


def test_asking_imports_no_framework():
    code = "import sys, numpy; from flexstore.frameworks import describe; describe({'a': numpy.zeros(1), 'b': object});"
    script = f"try:\n {code}\nexcept TypeError:\n print(sorted({{'paddle', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_shard_weight_cuts_evenly_unless_told_otherwise():
    tensor = np.zeros((2, 3))
    assert shard_weight("w", tensor, 1, 2, 4).block == Box((0, 6), (2, 3))
    assert shard_weight("w", tensor, 1, 2, 4).global_shape == (2, 12)
    assert shard_weight("w", tensor, 1, 2, 4).declared_axis is None
    assert shard_weight("w", tensor, None, 2, 4).global_shape == (2, 3)
    uneven = shard_weight("w", tensor, 0, 1, 2, global_dim=5, offset=3)
    assert (uneven.global_shape, uneven.global_offset) == ((5, 3), (3, 0))


@pytest.mark.parametrize(
    ("axis", "rank", "size", "options"),
    [
        (2, 0, 1, {}),
        (-1, 0, 1, {}),
        (0, 2, 2, {}),
        (0, 0, 0, {}),
        (0, 0, 2, {"global_dim": 5}),
        (0, 0, 2, {"offset": 0}),
        (0, 1, 2, {"global_dim": 3, "offset": 2}),
    ],
)
def test_shard_weight_refuses_contradictions(axis, rank, size, options):
    with pytest.raises(InvalidStateError) as caught:
        shard_weight("w", np.zeros((2, 3)), axis, rank, size, **options)
    assert caught.value.key == "w"


def test_r8_build_sharded_state_dict_follows_rules():
    done = rows("done", np.zeros((1, 2)), 0, 2)
    layer = {"q.weight": np.zeros((2, 3)), "q.bias": None, "k.weight": np.zeros((2, 3)), "norm": np.zeros(3), "s": done}
    built = build_sharded_state_dict(layer, {"*.weight": 1, "k.weight": 0, "*.bias": 0}, rank=1, size=2, prefix="l.0.")
    assert list(built) == ["l.0.q.weight", "l.0.q.bias", "l.0.k.weight", "l.0.norm", "l.0.s"]
    assert built["l.0.q.weight"].block == Box((0, 3), (2, 3))
    assert built["l.0.k.weight"].block == Box((2, 0), (2, 3))
    assert built["l.0.norm"].global_shape == (3,)
    assert built["l.0.q.bias"] is None
    assert built["l.0.s"] is done
    assert all(value.key == key for key, value in built.items() if value is not None and value is not done)
    with pytest.raises(InvalidStateError, match=r"\[0, 1\]"):
        build_sharded_state_dict(layer, {"q.*": 0, "*.weight": 1}, size=2)
