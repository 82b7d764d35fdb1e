"""Paddle tensors: plain ones, parameters, DistTensors. Import this module only when Paddle is there.

Memory in reach of the CPU (CPU and pinned places) is seen without a copy through DLPack, whatever its strides, and
can be written to. numpy and DLPack know neither bfloat16 nor 8-bit floats: those are viewed as integers of their width
first. Memory elsewhere is copied piece by piece, on the tensor's own stream.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import paddle

from flexstore.core.box import Box
from flexstore.core.dtypes import DType, dtype_named
from flexstore.core.region import Array, DeviceArray, HostArray, Index, LocalArray
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError, UnsupportedValueError
from flexstore.frameworks.mesh import Cut, block_on_mesh
from flexstore.frameworks.shards import no_memory, whole


class PaddleFramework:
    """The adapter for Paddle."""

    name = "paddle"

    def is_tensor(self, value: object) -> bool:
        """See `Framework.is_tensor`."""
        return isinstance(value, paddle.Tensor)

    def shard(self, path: str, value: Any) -> ShardedTensor | None:
        """See `Framework.shard`.

        Raises:
            InvalidStateError: a DistTensor whose elements are partial sums or not one box.
        """
        if not value.is_dist():
            return whole(path, value, value.shape)
        block = _block(value)
        if block is None:
            return None
        return ShardedTensor(path, value, block.shape, tuple(value.shape), block.offset)

    def local_array(self, tensor: Any) -> LocalArray:
        """See `Framework.local_array`; of a DistTensor, the elements on this rank.

        Raises:
            InvalidStateError: the tensor has no memory.
            UnsupportedValueError: a sparse tensor, or an element type without a name.
        """
        if tensor.is_dist():
            tensor = tensor._local_value()
        if not tensor.is_dense():
            raise UnsupportedValueError("a sparse tensor cannot be stored", hint="store its indices and values")
        dtype, bits = _dtype(tensor.dtype)
        if not tensor._is_initialized():
            return _without_memory(tensor, dtype)
        place = tensor.place
        seen = tensor if tensor.stop_gradient else tensor.detach()
        seen = seen if bits is None else seen.view(bits)
        if place.is_cpu_place() or place.is_cuda_pinned_place():
            return HostArray(_host(seen, dtype), dtype)
        return device_array(seen, dtype)


@cache
def _dtype(dtype: Any) -> tuple[DType, str | None]:
    """An element type, and the name of the integer type that stands in for it where numpy does not know it."""
    known = dtype_named(str(dtype).removeprefix("paddle."))
    return known, None if known.is_numpy_native else f"int{8 * known.itemsize}"


def _host(seen: Any, dtype: DType) -> Array:
    return np.from_dlpack(seen).view(dtype.numpy)


def _without_memory(tensor: Any, dtype: DType) -> HostArray:
    """Paddle gives no memory to empty tensors, so that only others have lost theirs."""
    if 0 not in tensor.shape:
        raise no_memory("Paddle tensor")
    return HostArray(np.empty(tuple(tensor.shape), dtype.numpy), dtype)


def device_array(seen: Any, dtype: DType) -> DeviceArray:
    """A tensor whose memory the CPU cannot see.

    Args:
        seen: detached, of an element type that numpy knows, as wide as ``dtype``.
        dtype: the true element type.
    """
    if seen.place.is_gpu_place():  # the pipeline's threads do not wait for the stream that computes the values
        paddle.device.synchronize()

    def read(index: Index) -> Array:
        return _host(seen[index].contiguous().cpu(), dtype)

    def write(index: Index, values: Array) -> None:
        piece = paddle.to_tensor(_as_bits(values, seen), place=seen.place)
        if index:
            seen[index] = piece
        else:  # Paddle cannot assign to an index of a 0-d tensor
            seen.copy_(piece, True)

    return DeviceArray(tuple(seen.shape), dtype, read, write)


def _as_bits(values: Array, seen: Any) -> Array:
    return values.view(_dtype(seen.dtype)[0].numpy)


def _block(tensor: Any) -> Box | None:
    """The block of a DistTensor that lies on this rank, or None if its mesh leaves this rank out."""
    mesh = tensor.process_mesh
    rank = paddle.distributed.get_rank()
    if rank not in mesh.process_ids:
        return None
    if any(placement.is_partial() for placement in tensor.placements):
        raise InvalidStateError(
            f"the DistTensor holds partial sums ({tensor.placements})", hint="reshard it to Replicate() or Shard(...)"
        )
    coordinate = np.unravel_index(mesh.process_ids.index(rank), mesh.shape)
    return block_on_mesh(tuple(tensor.shape), tuple(mesh.shape), tuple(map(int, coordinate)), _cuts(tensor.placements))


def _cuts(placements: Any) -> tuple[Cut, ...]:
    """The cuts in the order of Paddle's ``shard_order``, which is the mesh's order unless it was given."""
    shards = [(mesh_dim, placement) for mesh_dim, placement in enumerate(placements) if placement.is_shard()]
    if any(placement.get_split_factor() > 1 for _, placement in shards):
        raise InvalidStateError(
            f"the elements of the DistTensor are rearranged ({placements})", hint="reshard it without a split_factor"
        )
    shards.sort(key=lambda shard: shard[1].get_co_shard_order())
    return tuple(Cut(mesh_dim, placement.get_dim()) for mesh_dim, placement in shards)


FRAMEWORK = PaddleFramework()
