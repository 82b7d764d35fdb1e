"""The state of `layout_kit` as Paddle objects of every kind, and their bits. Imports Paddle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle.base.framework import EagerParamBase
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

from flexstore.core.dtypes import dtype_of
from flexstore.core.tensor import ShardedTensor
from flexstore.testing import Cut
from tests.stories_kit import bits

Values = npt.NDArray[Any]

PADDING = 3
"""Elements after each flattened range, as in a fused buffer."""


def tensor_of(values: Values, *, strided: bool = False) -> paddle.Tensor:
    """A tensor with these bits; ``strided``: a transposed view of other memory."""
    if strided:
        return tensor_of(np.array(values.T, order="C")).transpose(list(range(values.ndim))[::-1])
    dtype = dtype_of(values.dtype)
    if dtype.is_numpy_native:
        return paddle.to_tensor(values)
    if not values.size:
        return paddle.empty(values.shape, dtype.name)
    return paddle.to_tensor(values.view(f"i{dtype.itemsize}")).view(dtype.name)


def bits_of(tensor: paddle.Tensor) -> bytes:
    """The row-major bytes of a tensor, as Paddle itself gives them out."""
    if 0 in tensor.shape:
        return b""
    dense = tensor.detach().contiguous()
    name = str(dense.dtype).removeprefix("paddle.")
    width = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}.get(name)
    return bits(dense.view(width).numpy() if width else dense.numpy())


def state_of(cuts: Iterable[Cut], rank: int, change: Callable[[Values], Values] = np.asarray) -> dict[str, Any]:
    """What a rank holds.

    Whole tensors are parameters and strided tensors in turn, shards are Paddle's `ShardedWeight` and our
    `ShardedTensor`, of strided memory where it has axes; flattened ranges are followed by padding.

    Args:
        change: makes other contents from the right ones.
    """
    return {
        shard.key: _held(number % 2 == 0, shard, change(np.asarray(shard.local_tensor)))
        for number, shard in _numbered(cuts, rank)
    }


def wrong(state: Mapping[str, Any], cuts: Iterable[Cut], rank: int) -> list[str]:
    """The names whose bits are not those of the layout, or whose padding has changed."""
    return [
        shard.key
        for number, shard in _numbered(cuts, rank)
        if bits_of(_tensor(state[shard.key])) != bits_of(_tensor(_held(False, shard, np.asarray(shard.local_tensor))))
    ]


def weights_of(
    cuts: Iterable[Cut], rank: int, change: Callable[[Values], Values] = np.asarray
) -> dict[str, ShardedWeight]:
    """What a rank holds, in the only form that Paddle takes for shards: no empty ones and no padding."""
    return {
        shard.key: _weight(shard, tensor_of(change(np.asarray(shard.local_tensor))))
        for _, shard in _numbered(cuts, rank)
        if shard.size
    }


def _numbered(cuts: Iterable[Cut], rank: int) -> Iterator[tuple[int, ShardedTensor]]:
    return ((number, shard) for number, cut in enumerate(cuts) for shard in cut.filled(rank))


def _held(is_even: bool, shard: ShardedTensor, values: Values) -> Any:
    if shard.is_flattened:
        values = np.concatenate([values, np.ones(PADDING, values.dtype)])
    tensor = tensor_of(values, strided=is_even and values.ndim > 1 and values.size > 0)
    if not shard.is_flattened and shard.local_shape == shard.global_shape:
        return tensor if is_even else EagerParamBase.from_tensor(tensor, trainable=False)
    if not is_even:
        return _weight(shard, tensor)
    return ShardedTensor(
        shard.key,
        tensor,
        shard.local_shape,
        shard.global_shape,
        shard.global_offset,
        shard.is_flattened,
        shard.flattened_range,
    )


def _weight(shard: ShardedTensor, tensor: paddle.Tensor) -> ShardedWeight:
    return ShardedWeight(
        shard.key,
        tensor,
        shard.local_shape,
        shard.global_shape,
        shard.global_offset,
        shard.is_flattened,
        shard.flattened_range,
    )


def _tensor(held: Any) -> paddle.Tensor:
    return getattr(held, "local_tensor", held)
