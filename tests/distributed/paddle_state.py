"""The state that `paddle_writer` saves, as numpy knows it."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
SHAPES = {"scalar": (), "row": (6, 5), "column": (3, 4, 4), "flat": (3, 5, 7), "copy": (7,)}


def arrays() -> dict[str, np.ndarray]:
    """Every dtype cut in every way; small whole numbers, which every dtype holds."""
    return {
        f"{kind}.{name}": (np.arange(np.prod(shape, dtype=int)) % 7 + i % 2).reshape(shape).astype(scalar)
        for i, (name, scalar) in enumerate(DTYPES.items())
        for kind, shape in SHAPES.items()
    }


def cut(
    key: str, shape: tuple[int, ...], rank: int, world: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int] | None]:
    """What a rank holds: offset and shape of its block, and its flattened range of it, uneven, if any."""
    kind = key.split(".")[0]
    offset, local = [0] * len(shape), list(shape)
    if kind in ("row", "column"):
        axis = 0 if kind == "row" else 1
        local[axis] = shape[axis] // world
        offset[axis] = rank * local[axis]
    size = int(np.prod(shape))
    ends = [0, size // 3 + 1, size] if world == 2 else [0, size]
    flat = (ends[rank], ends[rank + 1]) if kind == "flat" else None
    return tuple(offset), tuple(local), flat
