"""numpy arrays, ml_dtypes' element types included.

Zero copy for every array in the machine's byte order, whatever its strides; others are converted piece by piece.
numpy scalars are no tensors, they are plain values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flexstore.core.dtypes import DType, dtype_of
from flexstore.core.region import Array, DeviceArray, HostArray, Index, LocalArray
from flexstore.core.tensor import ShardedTensor
from flexstore.errors import UnsupportedValueError
from flexstore.frameworks.shards import whole


class NumpyFramework:
    """The adapter for numpy."""

    name = "numpy"

    def is_tensor(self, value: object) -> bool:
        """See `Framework.is_tensor`."""
        return isinstance(value, np.ndarray)

    def shard(self, path: str, value: Any) -> ShardedTensor | None:
        """See `Framework.shard`."""
        return whole(path, value, value.shape)

    def local_array(self, tensor: Any) -> LocalArray:
        """See `Framework.local_array`.

        Raises:
            UnsupportedValueError: elements that are no numbers, or a masked array.
        """
        dtype = dtype_of(tensor.dtype)
        if isinstance(tensor, np.ma.MaskedArray):
            raise UnsupportedValueError("a masked array cannot be stored", hint="store its data and its mask")
        host = np.asarray(tensor)
        return HostArray(host, dtype) if host.dtype.isnative else _converted(host, dtype)


def _converted(foreign: Array, dtype: DType) -> DeviceArray:
    """Memory in the other byte order is as unreadable to the pipeline as a device's."""

    def read(index: Index) -> Array:
        return np.asarray(foreign[index]).astype(dtype.numpy)

    def write(index: Index, values: Array) -> None:
        foreign[index] = values

    return DeviceArray(foreign.shape, dtype, read, write)


FRAMEWORK = NumpyFramework()
