"""Paddle tensors, parameters, ShardedWeights and DistTensors."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError, UnsupportedValueError
from flexstore.frameworks import describe, framework_of

NAMES = [name for name in DTYPES if name not in ("uint16", "uint32", "uint64")]


@pytest.fixture(scope="module")
def paddle():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle
    paddle.set_device("cpu")
    return paddle


def filled(paddle, name, shape=(3, 4)):
    """A tensor of a dtype, with different elements."""
    values = np.arange(np.prod(shape)).reshape(shape).astype(DTYPES[name].numpy)
    if DTYPES[name].is_numpy_native:
        return paddle.to_tensor(values), values
    if not values.size:
        return paddle.empty(shape, name), values
    return paddle.to_tensor(values.view(f"i{values.itemsize}")).view(name), values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 4)])
def test_cpu_memory_is_seen_without_a_copy(paddle, name, shape):
    tensor, values = filled(paddle, name, shape)
    array = framework_of(tensor).local_array(tensor)
    assert (array.shape, array.dtype.name) == (shape, name)
    assert array.host.dtype == DTYPES[name].numpy
    assert array.host.tobytes() == values.tobytes()
    if values.size:
        assert array.host.ctypes.data == tensor.data_ptr()
    assert array.host.flags.writeable


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_strides_are_kept_and_writes_arrive(paddle, name):
    tensor, values = filled(paddle, name)
    region = describe({"w": tensor.T[1:]}, writable=True).regions[0]
    assert region.host().tobytes() == values.T[1:].tobytes()
    region.store(Box((0, 0), (1, 3)), np.zeros((1, 3), values.dtype))
    assert framework_of(tensor).local_array(tensor).host[:, 1].tobytes() == bytes(3 * values.itemsize)


def test_memory_outlives_the_tensor(paddle):
    region = describe({"w": paddle.full([1000], 7.0)}).regions[0]
    paddle.full([1000], 8.0)
    assert (region.host() == 7).all()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_parameters(paddle, name):
    parameter = paddle.nn.Linear(1, 2).to(dtype=name).bias
    region = describe({"w": parameter}, writable=True).regions[0]
    region.store(region.box, np.ones(2, DTYPES[name].numpy))
    assert parameter.astype("float32").tolist() == [1, 1]
    assert not parameter.stop_gradient


def test_e4_e5_e7_layers_without_bias(paddle):
    layer = paddle.nn.Linear(2, 3, bias_attr=False)
    found = describe({"layer": {"weight": layer.weight, "bias": layer.bias}})
    assert [info.key for info in found.infos] == ["layer.weight"]
    assert found.common == {"layer.bias": None}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "index"), [((3, 4), (slice(1, 3), slice(0, 2))), ((), ()), ((5,), (slice(2, 3),))])
def test_e1_device_memory_is_copied_piece_by_piece(paddle, name, shape, index):
    from flexstore.frameworks.paddle import device_array

    tensor, values = filled(paddle, name, shape)
    bits = tensor if DTYPES[name].is_numpy_native else tensor.view(f"int{8 * values.itemsize}")
    array = device_array(bits, DTYPES[name])
    assert array.host is None
    assert array.shape == shape
    assert array.fetch(index).dtype == values.dtype
    assert array.fetch(index).tobytes() == values[index].tobytes()
    new = np.zeros_like(values[index])
    new.flags.writeable = False
    array.store(index, new)
    values[index] = new
    assert framework_of(tensor).local_array(tensor).host.tobytes() == values.tobytes()


def test_z6_a_tensor_without_memory_is_refused(paddle):
    tensor = paddle.ones([3])
    tensor._clear_data()
    with pytest.raises(InvalidStateError, match="no memory") as caught:
        describe({"layer": {"w": tensor}})
    assert caught.value.key == "layer.w"


def test_r4_sparse_tensors_are_refused(paddle):
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
    with pytest.raises(UnsupportedValueError, match="sparse") as caught:
        describe({"w": sparse})
    assert caught.value.key == "w"


def test_d27_nested_optimizer_state(paddle):
    weight = paddle.zeros([2, 2])
    optimizer = paddle.optimizer.AdamW(0.1, parameters=[paddle.create_parameter([2], "float32")])
    found = describe({"model": {"w": weight}, "opt": optimizer.state_dict(), "epoch": 4})
    assert [info.key for info in found.infos] == ["model.w"]
    assert found.common["epoch"] == 4


def test_r4_d29_paddles_own_sharded_weight(paddle):
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

    block = ShardedWeight("w", paddle.full([2, 3], 1.0), (2, 3), (4, 3), (2, 0))
    flat = ShardedWeight("m", paddle.arange(4.0), (2, 3), (4, 3), (2, 0), True, slice(1, 5))
    one = ShardedWeight("o", paddle.ones([1]), (2, 3), (4, 3), (2, 0), True, slice(5, 6))
    none = ShardedWeight("n", paddle.empty([0]), (2, 3), (4, 3), (2, 0), True, slice(6, 6))
    found = describe({"layer": {"w": block, "m": flat, "o": one, "n": none}, "plain": paddle.ones([1])})
    assert [info.key for info in found.infos] == ["w", "m", "o", "n", "plain"]
    assert [(region.key, str(region.box), region.host().reshape(-1).tolist()) for region in found.regions] == [
        ("w", "[2:4, 0:3]", [1.0] * 6),
        ("m", "[2:3, 1:3]", [0.0, 1.0]),
        ("m", "[3:4, 0:2]", [2.0, 3.0]),
        ("o", "[3:4, 2:3]", [1.0]),
        ("plain", "[0:1]", [1.0]),
    ]


def test_r9_a_flattened_shard_of_a_fused_buffer(paddle):
    buffer = paddle.arange(10.0).astype("bfloat16")
    shard = ShardedTensor("w", buffer[2:8], (2, 3), (2, 3), (0, 0), True, slice(1, 5))
    regions = describe({"w": shard}, writable=True).regions
    assert [region.host().reshape(-1).tolist() for region in regions] == [[2, 3], [4, 5]]
    regions[1].store(regions[1].box, np.zeros((1, 2), ml_dtypes.bfloat16))
    assert buffer.astype("float32").tolist() == [0, 1, 2, 3, 0, 0, 6, 7, 8, 9]


def dist_tensor(paddle, shape, ranks, placements):
    mesh = paddle.distributed.ProcessMesh(ranks)
    values = paddle.arange(float(np.prod(shape))).reshape(shape)
    return paddle.distributed.shard_tensor(values, mesh, placements)


def test_dist_tensors_show_this_ranks_block(paddle):
    tensor = dist_tensor(paddle, (5, 4), [[0, 1], [2, 3]], [paddle.distributed.Shard(1), paddle.distributed.Shard(0)])
    found = describe({"w": tensor}, writable=True)
    assert found.infos[0].shape == (5, 4)
    (region,) = found.regions
    assert region.box == Box((0, 0), (3, 2))
    assert region.host().tolist() == [[0, 1], [4, 5], [8, 9]]
    region.store(region.box, np.zeros((3, 2), np.float32))
    assert not tensor._local_value().numpy().any()


def test_dist_tensors_of_other_ranks_hold_nothing(paddle):
    found = describe({"w": dist_tensor(paddle, (4,), [1], [paddle.distributed.Replicate()])})
    assert found.infos == []
    assert found.regions == []


@pytest.mark.parametrize("word", ["partial sums", "rearranged"])
def test_dist_tensors_that_are_not_one_box_are_refused(paddle, word):
    dist = paddle.distributed
    placement = dist.Partial() if word == "partial sums" else dist.Shard(0, split_factor=2)
    with pytest.raises(InvalidStateError, match=word):
        describe({"w": dist_tensor(paddle, (8,), [0, 1], [placement])})
