"""The training text, as bytes, and the batch that belongs to a step number.

A batch is a pure function of the seed and the step: every rank of every run, interrupted or not, sees the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

VOCABULARY = 256
"""A token is a byte."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text to train on.

    Attributes:
        tokens: one int64 per byte.
        seed: of the batches.
    """

    tokens: npt.NDArray[np.int64]
    seed: int

    @classmethod
    def load(cls, seed: int) -> Text:
        """The text that ships with this example (see ``CORPUS_LICENSE.txt`` for its source)."""
        raw = (Path(__file__).parent / "corpus.txt").read_bytes()
        return cls(np.frombuffer(raw, dtype=np.uint8).astype(np.int64), seed)

    def batch(self, step: int, rows: int, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Inputs and labels of one step, both of shape ``(rows, length)``; a label is the byte after its input."""
        starts = np.random.default_rng([self.seed, step]).integers(0, len(self.tokens) - length, size=rows)
        windows = self.tokens[starts[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]
