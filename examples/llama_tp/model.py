"""A small LLaMA: rotary attention, RMSNorm, SwiGLU, embedding and head tied; tensor-parallel over any degree that
divides its heads, its feed-forward width and the vocabulary."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from parallel import ColumnParallelLinear, RowParallelLinear, TensorParallel, VocabParallelEmbedding, split_axis
from text import VOCABULARY


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of the model."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    feed_forward: int = 352

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Layer):
    """Divide by the root mean square, multiply by a learnt scale; every rank has a copy."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = self.create_parameter([width])
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * paddle.rsqrt(x.square().mean(axis=-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Layer):
    """Causal self-attention with rotary positions; each rank has its own heads."""

    def __init__(self, tp: TensorParallel, config: Config) -> None:
        super().__init__()
        self.tp = tp
        self.heads, self.head_width = tp.share(config.heads), config.head_width
        self.query = ColumnParallelLinear(tp, config.width, config.width)
        self.key = ColumnParallelLinear(tp, config.width, config.width)
        self.value = ColumnParallelLinear(tp, config.width, config.width)
        self.output = RowParallelLinear(tp, config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        x = self.tp.enter(x)
        query, key = _rotate(self._heads(self.query(x))), _rotate(self._heads(self.key(x)))
        scores = paddle.matmul(query, key, transpose_y=True) / math.sqrt(self.head_width)
        future = paddle.triu(paddle.full([length, length], -1e9), diagonal=1)
        mixed = paddle.matmul(F.softmax(scores + future), self._heads(self.value(x)))
        return self.output(mixed.transpose([0, 2, 1, 3]).reshape([rows, length, self.heads * self.head_width]))

    def _heads(self, x: Tensor) -> Tensor:
        """``[rows, length, heads * head_width]`` to ``[rows, heads, length, head_width]``."""
        return x.reshape([*x.shape[:2], self.heads, self.head_width]).transpose([0, 2, 1, 3])


def _rotate(x: Tensor) -> Tensor:
    """Turn each pair ``(x[i], x[i + half])`` by an angle that grows with the position (RoPE)."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-paddle.arange(half, dtype=x.dtype) / half)
    angles = paddle.outer(paddle.arange(x.shape[-2], dtype=x.dtype), frequencies)
    a, b = x[..., :half], x[..., half:]
    return paddle.concat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], axis=-1)


class FeedForward(nn.Layer):
    """SwiGLU; each rank has its own columns."""

    def __init__(self, tp: TensorParallel, config: Config) -> None:
        super().__init__()
        self.tp = tp
        self.gate = ColumnParallelLinear(tp, config.width, config.feed_forward)
        self.up = ColumnParallelLinear(tp, config.width, config.feed_forward)
        self.down = RowParallelLinear(tp, config.feed_forward, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tp.enter(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Layer):
    """Attention and feed-forward, each normalised before and added to its input."""

    def __init__(self, tp: TensorParallel, config: Config) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(config.width), Attention(tp, config)
        self.feed_forward_norm, self.feed_forward = RMSNorm(config.width), FeedForward(tp, config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Layer):
    """The language model. Its initial weights depend on ``seed`` and not on the tensor-parallel degree."""

    def __init__(self, tp: TensorParallel, config: Config, seed: int) -> None:
        super().__init__()
        self.embedding = VocabParallelEmbedding(tp, VOCABULARY, config.width)
        self.blocks = nn.LayerList([Block(tp, config) for _ in range(config.layers)])
        self.norm = RMSNorm(config.width)
        for name, parameter in self.named_parameters():
            parameter.set_value(_initial(tp, name, parameter, seed))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of ``labels`` after ``tokens``, both of shape ``[rows, length]``."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embedding.cross_entropy(self.norm(x).flatten(0, 1), labels.flatten())


def _initial(tp: TensorParallel, name: str, parameter: Tensor, seed: int) -> Tensor:
    """Make the whole weight from the seed and its name, then keep this rank's slice."""
    axis = split_axis(parameter)
    if axis is None:
        return paddle.ones_like(parameter)
    shape = list(parameter.shape)
    shape[axis] *= tp.size
    whole = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(0.0, 0.05, shape)
    return paddle.to_tensor(np.split(whole, tp.size, axis)[tp.rank], dtype=parameter.dtype)
