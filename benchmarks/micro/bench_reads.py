"""How many bytes a partial read costs, in units of the bytes it asks for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import flexstore as fs
from flexstore.core.box import Box


def run() -> dict[str, float]:
    """Read amplification for rows and columns of a 16 MiB float32 tensor, checksums verified."""
    array = np.arange(2048 * 2048, dtype=np.float32).reshape(2048, 2048)
    wanted = {
        "a quarter of the rows": Box((512, 0), (512, 2048)),
        "a quarter of the columns": Box((0, 512), (2048, 512)),
    }
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as root:
        fs.save({"w": array}, f"{root}/c")
        return {
            f"bytes read per byte wanted, {name}": _amplification(f"{root}/c", array, box)
            for name, box in wanted.items()
        }


def _amplification(url: str, array: np.ndarray, box: Box) -> float:
    target = np.empty(box.shape, np.float32)
    shard = fs.ShardedTensor("w", target, box.shape, array.shape, box.offset)
    report = fs.load({"w": shard}, url)
    if not np.array_equal(target, array[box.within((0, 0))]):
        raise AssertionError("a partial read differs")
    return report.bytes_read / target.nbytes


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name}: {value:.3f}")
