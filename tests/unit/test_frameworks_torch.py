"""torch tensors, parameters and DTensors."""

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError, UnsupportedValueError
from flexstore.frameworks import describe, framework_of
from flexstore.frameworks.torch import device_array


def filled(name, shape=(3, 4)):
    """A tensor of a dtype, with different elements."""
    values = np.arange(np.prod(shape)).reshape(shape).astype(DTYPES[name].numpy)
    bits = values if DTYPES[name].is_numpy_native else values.view(f"i{values.itemsize}")
    return torch.from_numpy(bits).view(getattr(torch, name)), values


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 4)])
def test_cpu_memory_is_seen_without_a_copy(name, shape):
    tensor, values = filled(name, shape)
    array = framework_of(tensor).local_array(tensor)
    assert (array.shape, array.dtype.name) == (shape, name)
    assert array.host.dtype == DTYPES[name].numpy
    assert array.host.tobytes() == values.tobytes()
    if values.size:
        assert array.host.ctypes.data == tensor.data_ptr()
    assert array.host.flags.writeable


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_strides_are_kept_and_writes_arrive(name):
    tensor, values = filled(name)
    region = describe({"w": tensor.T[1:]}, writable=True).regions[0]
    assert region.host().tobytes() == values.T[1:].tobytes()
    region.store(Box((0, 0), (1, 3)), np.zeros((1, 3), values.dtype))
    assert tensor.view(torch.uint8).numpy().reshape(3, 4, -1)[:, 1].tolist() == [[0] * values.itemsize] * 3


def test_parameters_and_leaves_that_need_gradients():
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    region = describe({"w": parameter}, writable=True).regions[0]
    region.store(region.box, np.ones(2, ml_dtypes.bfloat16))
    assert parameter.tolist() == [1, 1]
    assert parameter.requires_grad


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(
    ("shape", "index"), [((3, 4), (slice(1, 3), slice(0, 2))), ((), ()), ((5,), (slice(2, 3),)), ((5,), (slice(2, 2),))]
)
def test_e1_device_memory_is_copied_piece_by_piece(name, shape, index):
    tensor, values = filled(name, shape)
    bits = tensor if DTYPES[name].is_numpy_native else tensor.view(getattr(torch, f"int{8 * values.itemsize}"))
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


def freed():
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "make",
    [freed, torch.nn.UninitializedParameter, lambda: torch.zeros(3, device="meta")],
    ids=["freed", "lazy", "meta"],
)
def test_z6_a_tensor_without_memory_is_refused(make):
    with pytest.raises(InvalidStateError, match="no memory") as caught:
        describe({"layer": {"w": make()}})
    assert caught.value.key == "layer.w"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3).to_sparse(),
        torch.zeros(3, dtype=torch.complex64).conj(),
        torch.zeros(3, dtype=torch.float8_e4m3fnuz),
    ],
)
def test_r4_tensors_that_are_no_plain_memory_are_refused(tensor):
    with pytest.raises(UnsupportedValueError) as caught:
        describe({"w": tensor})
    assert caught.value.key == "w"


def test_r9_a_flattened_shard_of_a_fused_buffer():
    buffer = torch.arange(10.0)
    shard = ShardedTensor("w", buffer[2:8], (2, 3), (2, 3), (0, 0), True, slice(1, 5))
    assert [region.host().reshape(-1).tolist() for region in describe({"w": shard}).regions] == [[2, 3], [4, 5]]


@pytest.fixture
def as_rank():
    """Makes this process look like one rank of four."""

    def start(rank):
        torch.distributed.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())

    yield start
    torch.distributed.destroy_process_group()


def dtensor(local, mesh, placements, shape):
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(
    "placements",
    [
        (Replicate(), Replicate()),
        (Shard(0), Replicate()),
        (Shard(1), Shard(0)),
        (Shard(0), Shard(0)),
        (_StridedShard(0, split_factor=2), Shard(0)),
    ],
    ids=str,
)
def test_dtensors_lie_where_torch_says(as_rank, rank, placements):
    as_rank(rank)
    mesh = init_device_mesh("cpu", (2, 2))
    meta = dtensor(torch.zeros(0), mesh, placements, (8, 5))
    (chunk,) = meta.__create_chunk_list__()
    local = torch.arange(float(chunk.sizes.numel())).reshape(chunk.sizes)
    found = describe({"w": dtensor(local, mesh, placements, (8, 5))}, writable=True)
    assert found.infos[0].shape == (8, 5)
    assert [region.box for region in found.regions] == [Box(tuple(chunk.offsets), tuple(chunk.sizes))]
    assert found.regions[0].host().ctypes.data == local.data_ptr()


def test_dtensors_of_other_ranks_hold_nothing(as_rank):
    as_rank(3)
    found = describe({"w": dtensor(torch.zeros(0), DeviceMesh("cpu", [0, 1]), [Shard(0)], (4,))})
    assert found.infos == []
    assert found.regions == []


def test_partial_sums_are_refused(as_rank):
    as_rank(0)
    partial = dtensor(torch.zeros(4), init_device_mesh("cpu", (4,)), [Partial()], (4,))
    with pytest.raises(InvalidStateError, match="partial sums"):
        describe({"w": partial})
