"""torch tensors: plain ones, parameters, DTensors. Import this module only when torch is there.

CPU memory is seen without a copy, whatever its strides, and can be written to. numpy knows neither bfloat16 nor 8-bit
floats: those are viewed as integers of their width first. Memory elsewhere is copied piece by piece.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from flexstore.core.dtypes import DType, dtype_named
from flexstore.core.region import Array, DeviceArray, HostArray, Index, LocalArray
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import InvalidStateError, UnsupportedValueError
from flexstore.frameworks.mesh import Cut, block_on_mesh
from flexstore.frameworks.shards import no_memory, whole


class TorchFramework:
    """The adapter for torch."""

    name = "torch"

    def is_tensor(self, value: object) -> bool:
        """See `Framework.is_tensor`."""
        return isinstance(value, torch.Tensor)

    def shard(self, path: str, value: Any) -> ShardedTensor | None:
        """See `Framework.shard`.

        Raises:
            InvalidStateError: a DTensor whose elements are partial sums or not one box, or a parameter that was
                never initialised.
        """
        if torch.nn.parameter.is_lazy(value):
            raise no_memory("torch parameter")
        return _dtensor_shard(path, value) if _is_dtensor(value) else whole(path, value, value.shape)

    def local_array(self, tensor: Any) -> LocalArray:
        """See `Framework.local_array`; of a DTensor, the elements on this rank.

        Raises:
            InvalidStateError: the tensor has no memory (a meta tensor, a freed storage).
            UnsupportedValueError: a sparse, quantised or lazily conjugated tensor.
        """
        tensor = tensor.detach()
        if _is_dtensor(tensor):
            tensor = tensor.to_local()
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedValueError(
                "the memory of the torch tensor does not hold its elements one by one",
                hint="store a dense copy: tensor.to_dense(), tensor.resolve_conj(), tensor.resolve_neg()",
            )
        if not tensor.data_ptr() and tensor.numel():
            raise no_memory("torch tensor")
        dtype, bits = _dtype(tensor.dtype)
        seen = tensor if bits is None else tensor.view(bits)
        return HostArray(_host(seen, dtype), dtype) if tensor.is_cpu else device_array(seen, dtype)


@cache
def _dtype(dtype: torch.dtype) -> tuple[DType, torch.dtype | None]:
    """An element type, and the integer type that stands in for it where numpy does not know it."""
    known = dtype_named(str(dtype).removeprefix("torch."))
    return known, None if known.is_numpy_native else getattr(torch, f"int{8 * known.itemsize}")


def _host(seen: torch.Tensor, dtype: DType) -> Array:
    host: Array = seen.numpy()
    return host.view(dtype.numpy)


def device_array(seen: torch.Tensor, dtype: DType) -> DeviceArray:
    """A tensor whose memory the CPU cannot see.

    Args:
        seen: detached, of an element type that numpy knows, as wide as ``dtype``.
        dtype: the true element type.
    """
    bits = _dtype(seen.dtype)[0].numpy
    if seen.is_cuda:  # the pipeline's threads do not wait for the stream that computes the values
        torch.cuda.current_stream(seen.device).synchronize()

    def read(index: Index) -> Array:
        return _host(seen[index].cpu(), dtype)

    def write(index: Index, values: Array) -> None:
        seen[index].copy_(torch.from_numpy(np.require(values.view(bits), requirements=("C", "W"))))

    return DeviceArray(tuple(seen.shape), dtype, read, write)


def _is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _dtensor_shard(path: str, tensor: Any) -> ShardedTensor | None:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    if any(placement.is_partial() for placement in tensor.placements):
        raise InvalidStateError(
            f"the DTensor holds partial sums {tensor.placements}", hint="redistribute it to Replicate() or Shard(...)"
        )
    shape = tuple(tensor.shape)
    block = block_on_mesh(shape, tuple(tensor.device_mesh.shape), tuple(coordinate), _cuts(tensor.placements))
    return ShardedTensor(path, tensor, block.shape, shape, block.offset)


def _cuts(placements: Any) -> tuple[Cut, ...]:
    return tuple(
        Cut(mesh_dim, placement.dim, getattr(placement, "split_factor", 1))
        for mesh_dim, placement in enumerate(placements)
        if not placement.is_replicate()
    )


FRAMEWORK = TorchFramework()
