"""D15: flip any bit of any file, and it is found. Thousands of random ones, in every file of several checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.base import Store
from flexstore.core.dtypes import DTYPES
from flexstore.core.manifest import MANIFEST_NAME, Manifest
from flexstore.errors import CorruptCheckpointError
from flexstore.groups.threads import run
from flexstore.testing import Cut, expected, flip_bit, pick_cut
from tests.stories_kit import URL, bits, filled, handing, memory_store, names

pytestmark = pytest.mark.usefixtures("handed")

FLIPS = 600  # in each of four checkpoints, the same number in every file
SHAPES = {"scalar": (), "matrix": (7, 11), "cube": (3, 4, 5), "large": (90_000,)}
DTYPES_OF_ALL = ("bool", "uint8", "float8_e4m3fn", "bfloat16", "float32", "complex64")


def cuts(world_size: int) -> list[Cut]:
    """Tensors of all sizes of element, one of them of several checksum blocks."""
    pick = random.Random(15).randint
    return [
        pick_cut(pick, f"{name}.{dtype}", shape, DTYPES[dtype], world_size)
        for dtype in DTYPES_OF_ALL
        for name, shape in SHAPES.items()
        if name != "large" or dtype == "uint8"
    ]


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory; and for each file where in it, half-open and in bytes, which tensor lies."""

    store: Store
    manifest: Manifest
    cuts: list[Cut]
    extents: dict[str, list[tuple[int, int, str]]]

    @classmethod
    def by(cls, strategy: str, world_size: int) -> Saved:
        store, tensors = memory_store(), cuts(world_size)

        def save(group: fs.ProcessGroup) -> None:
            state = {**filled(tensors, group.rank), "step": 7, "name": "é"}
            fs.save(state, URL, strategy, group=group, storage_options=handing(store))

        run(world_size, save)
        checkpoint = fs.open_checkpoint(URL, storage_options=handing(store))
        extents: dict[str, list[tuple[int, int, str]]] = {}
        for tensor in checkpoint.values():
            for chunk in tensor.chunks:
                stop = chunk.byte_offset + chunk.box.size * tensor.dtype.itemsize
                extents.setdefault(chunk.file, []).append((chunk.byte_offset, stop, tensor.key))
        return cls(store, checkpoint.manifest, tensors, extents)

    def load(self) -> dict[str, Any]:
        target: dict[str, Any] = {cut.key: np.zeros(cut.shape, cut.dtype.numpy) for cut in self.cuts}
        target |= {"step": None, "name": None}
        fs.load(target, URL, strict="exact", storage_options=handing(self.store))
        return target

    def verify(self) -> None:
        fs.open_checkpoint(URL, storage_options=handing(self.store)).verify()

    def check_values(self, loaded: dict[str, Any]) -> None:
        assert (loaded["step"], loaded["name"]) == (7, "é")
        for cut in self.cuts:
            assert bits(loaded[cut.key]) == bits(expected(cut.key, cut.shape, cut.dtype))

    def owner(self, file: str, byte: int) -> str | None:
        """The tensor whose element a byte of a file is part of."""
        return next((key for start, stop, key in self.extents.get(file, ()) if start <= byte < stop), None)

    def is_checked(self, file: str) -> bool:
        """Whether all bytes of a file have a checksum, also those that are of no tensor."""
        return file == MANIFEST_NAME or any(f.name == file and f.frame_crc is not None for f in self.manifest.files)


def failure(action: Callable[[], object]) -> CorruptCheckpointError | None:
    try:
        action()
    except CorruptCheckpointError as error:
        return error
    return None


def check_flip(saved: Saved, file: str, bit: int) -> None:
    """A flip in a tensor is found by a load, one elsewhere by a load or by verify, and harms no value in any case."""
    owner = saved.owner(file, bit // 8)
    loaded: list[dict[str, Any]] = []
    error = failure(lambda: loaded.append(saved.load()))
    if owner is not None:
        assert error is not None
        assert (error.file, error.key) == (file, owner)
    if error is None:
        saved.check_values(loaded[0])
    found = failure(saved.verify)
    if saved.is_checked(file) or owner is not None:
        assert found is not None
        assert found.file == file
        assert found.key == owner


@pytest.mark.parametrize(
    ("strategy", "world_size"), [("distcp", 1), ("distcp", 3), ("safetensors", 1), ("safetensors", 3)]
)
def test_d15_any_flipped_bit_is_found(strategy: str, world_size: int) -> None:
    saved = Saved.by(strategy, world_size)
    saved.verify()
    saved.check_values(saved.load())
    pick = random.Random(world_size)
    files = sorted(names(saved.store))
    for file in files:
        total = 8 * saved.store.head(file).nbytes
        for bit in pick.sample(range(total), min(total, -(-FLIPS // len(files)))):
            flip_bit(saved.store, file, bit)
            check_flip(saved, file, bit)
            flip_bit(saved.store, file, bit)
    saved.verify()
    saved.check_values(saved.load())


@pytest.mark.parametrize("strategy", ["distcp", "safetensors"])
def test_d15_a_file_that_is_cut_short_or_missing_is_found(strategy: str) -> None:
    saved = Saved.by(strategy, 2)
    for file in sorted(info.name for info in saved.manifest.files if saved.is_checked(info.name)):
        data = saved.store.get(file)
        for damaged in (data[:-1], data[: len(data) // 2], b""):
            saved.store.put(file, [damaged])
            error = failure(saved.verify)
            assert error is not None
            assert error.file == file
        saved.store.delete(file)
        assert failure(saved.verify) is not None
        saved.store.put(file, [data])
    saved.verify()


def test_d15_without_verify_a_flip_passes_and_nothing_else_is_checked() -> None:
    saved = Saved.by("distcp", 1)
    chunk = fs.open_checkpoint(URL, storage_options=handing(saved.store))["matrix.uint8"].chunks[0]
    flip_bit(saved.store, chunk.file, 8 * chunk.byte_offset)
    target = {"matrix.uint8": np.zeros((7, 11), np.uint8)}
    fs.load(target, URL, verify=False, storage_options=handing(saved.store))
    difference = target["matrix.uint8"] ^ expected("matrix.uint8", (7, 11), "uint8")
    assert np.count_nonzero(difference) == 1
    with pytest.raises(CorruptCheckpointError, match="checksum mismatch"):
        fs.load(target, URL, storage_options=handing(saved.store))
