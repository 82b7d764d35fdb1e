"""Tensor-parallel layers: each rank holds a slice of the weights, and two collectives join the slices.

A block of the model `enters` the parallel part with a replicated activation, multiplies it by a weight cut by columns,
then by one cut by rows, and `leaves` with the sum over ranks, replicated again.

Every cut weight carries ``split_axis``, the axis along which ranks hold consecutive equal slices. That is all that a
checkpoint has to know about a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import Tensor, nn


class _Enter(paddle.autograd.PyLayer):
    """Identity; the gradient is summed over ranks, because each rank's slice of the weights contributes a part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _sum_over_ranks(grad)


class _Leave(paddle.autograd.PyLayer):
    """Sum over ranks; every rank already has the whole gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _sum_over_ranks(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clone()


def _sum_over_ranks(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This rank's place among the ``size`` ranks that share every layer."""

    rank: int
    size: int

    def enter(self, x: Tensor) -> Tensor:
        """Take a replicated activation into the parallel part."""
        return x if self.size == 1 else _Enter.apply(x)

    def leave(self, x: Tensor) -> Tensor:
        """Add up the ranks' partial results; the sum is replicated."""
        return x if self.size == 1 else _Leave.apply(x)

    def maximum(self, x: Tensor) -> Tensor:
        """Elementwise maximum over ranks, a constant to autograd."""
        x = x.detach()
        if self.size > 1:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x

    def share(self, n: int) -> int:
        """This rank's part of ``n`` things cut evenly.

        Raises:
            ValueError: ``n`` does not divide evenly.
        """
        if n % self.size:
            raise ValueError(f"{n} cannot be cut evenly over {self.size} ranks; choose another number of processes")
        return n // self.size


def split_axis(parameter: Tensor) -> int | None:
    """The axis along which the ranks hold consecutive equal slices of a parameter; None if each has a whole copy."""
    axis: int | None = getattr(parameter, "split_axis", None)
    return axis


class ColumnParallelLinear(nn.Layer):
    """``x @ W``, with W ``[n_in, n_out]`` cut along its columns: takes an entered ``x``, gives a slice of columns."""

    def __init__(self, tp: TensorParallel, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([n_in, tp.share(n_out)])
        self.weight.split_axis = 1

    def forward(self, x: Tensor) -> Tensor:
        return paddle.matmul(x, self.weight)


class RowParallelLinear(nn.Layer):
    """``x @ W``, with W ``[n_in, n_out]`` cut along its rows: takes a slice of ``x``, gives the whole result."""

    def __init__(self, tp: TensorParallel, n_in: int, n_out: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = self.create_parameter([tp.share(n_in), n_out])
        self.weight.split_axis = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.tp.leave(paddle.matmul(x, self.weight))


class VocabParallelEmbedding(nn.Layer):
    """A table ``[vocabulary, width]`` cut along the vocabulary; it embeds tokens and, tied, scores them."""

    def __init__(self, tp: TensorParallel, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = self.create_parameter([tp.share(vocabulary), width])
        self.weight.split_axis = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ``tokens`` (any shape) by adding up what the ranks know about them."""
        row, is_mine = self._locate(tokens)
        return self.tp.leave(F.embedding(row, self.weight) * is_mine.unsqueeze(-1))

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the scores ``x @ table.T`` ``[rows, vocabulary]``, which no rank ever holds whole."""
        scores = paddle.matmul(self.tp.enter(x), self.weight, transpose_y=True)
        scores = scores - self.tp.maximum(scores.max(axis=-1, keepdim=True))
        normaliser = self.tp.leave(scores.exp().sum(axis=-1)).log()
        row, is_mine = self._locate(labels)
        picked = paddle.take_along_axis(scores, row.unsqueeze(-1), axis=-1).squeeze(-1)
        return (normaliser - self.tp.leave(picked * is_mine)).mean()

    def _locate(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Row of each token in this rank's slice (any row, if it is not there), and 1.0 where it is there, else 0.0."""
        rows = self.weight.shape[0]
        row = tokens - self.tp.rank * rows
        is_mine = (row >= 0) & (row < rows)
        return row.clip(0, rows - 1), is_mine.astype(self.weight.dtype)
