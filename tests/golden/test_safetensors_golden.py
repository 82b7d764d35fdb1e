"""Files that the real safetensors library wrote, read without it. See data/safetensors/README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flexstore.backends.local import LocalStore
from flexstore.core.dtypes import DTYPES
from flexstore.strategies.safetensors import SafetensorsFormat
from flexstore.strategies.safetensors_header import read_header
from tests.distcp_kit import read_tensor

DATA = Path(__file__).parent / "data" / "safetensors"
SHAPES = {"scalar": (), "row": (3,), "block": (2, 3)}
DTYPE_NAMES = sorted(set(DTYPES) - {"complex128"})


def expected(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What make.py put into a tensor."""
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return (values % 2 if name == "bool" else values).astype(DTYPES[name].numpy)


@pytest.mark.parametrize("folder", ["single", "sharded"])
def test_every_tensor_of_a_hugging_face_directory_is_read(folder: str) -> None:
    store, fmt = LocalStore(DATA / folder), SafetensorsFormat()
    assert fmt.detect(store)
    manifest = fmt.read_manifest(store)
    keys = {f"{name}.{kind}" for name in DTYPE_NAMES for kind in SHAPES}
    assert {tensor.key for tensor in manifest.tensors} == keys | {"empty"}
    for name in DTYPE_NAMES:
        for kind, shape in SHAPES.items():
            array = read_tensor(store, manifest, f"{name}.{kind}")
            assert (array.shape, array.dtype) == (shape, DTYPES[name].numpy)
            assert array.tobytes() == expected(name, shape).tobytes()
    assert manifest.tensors[manifest.index["empty"]].shape == (0, 4)


def test_the_metadata_is_read() -> None:
    header = read_header(LocalStore(DATA / "single"), "model.safetensors")
    assert header.metadata == {"format": "pt", "note": "ünïcode"}
