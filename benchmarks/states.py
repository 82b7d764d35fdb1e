"""The states that are saved and loaded: names, shapes and deterministic values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.float32]]

Shapes = Mapping[str, tuple[int, ...]]


def large() -> Shapes:
    """About 1 GiB: 60 tensors of 16 MiB and 200 small ones."""
    shapes = {f"layers.{i:03d}.weight": (2048, 2048) for i in range(60)}
    return shapes | {f"layers.{i:03d}.norm.weight": (2048,) for i in range(200)}


def many() -> Shapes:
    """20,000 tensors of 4 to 64 kB."""
    sizes = np.random.default_rng(0).integers(1_000, 16_001, 20_000)
    return {f"blocks.{i:05d}.weight": (int(n),) for i, n in enumerate(sizes)}


STATES = {"large": large, "many": many}


def filled(shapes: Shapes) -> Arrays:
    """Arrays with values that tell them apart."""
    arrays = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        array = np.empty(shape, np.float32)
        array.reshape(-1)[:] = np.arange(array.size, dtype=np.float32) + seed
        arrays[name] = array
    return arrays


def check(arrays: Arrays, shapes: Shapes) -> None:
    """Raise unless ``arrays`` holds what `filled` makes."""
    for name, array in filled(shapes).items():
        if not np.array_equal(arrays[name], array):
            raise AssertionError(f"{name} differs")
