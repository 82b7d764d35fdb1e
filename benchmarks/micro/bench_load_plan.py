"""How long one rank's load plan takes, from manifests that lie in memory."""

from __future__ import annotations

import time

import numpy as np

from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.core.manifest import ChunkTable, FileInfo, Manifest, TensorInfo
from flexstore.planning.load import plan_load
from flexstore.planning.spans import runs_of


def _grid_manifest(tensors: int, rows: int, columns: int, tile: int = 64) -> Manifest:
    """Tensors cut into a grid of square tiles, tile (i, j) of every tensor in file i * columns + j."""
    count = rows * columns
    dtype = dtype_named("float32")
    shape = (rows * tile, columns * tile)
    infos = tuple(TensorInfo(f"layer.{i:05d}.weight", dtype, shape) for i in range(tensors))
    row, column = np.divmod(np.tile(np.arange(count), tensors), columns)
    table = ChunkTable(
        tensor=np.repeat(np.arange(tensors), count),
        offset=np.stack([row * tile, column * tile]),
        shape=np.full((2, tensors * count), tile),
        file=row * columns + column,
        byte_offset=np.repeat(np.arange(tensors), count) * tile * tile * 4,
        fortran=np.zeros(tensors * count, np.bool_),
        crcs=np.zeros(0, np.uint32),
        crc_start=np.zeros(tensors * count + 1, np.int64),
    )
    files = tuple(FileInfo(f"{i}.distcp", tensors * tile * tile * 4) for i in range(count))
    return Manifest("1", "distcp", infos, files, table)


def _plan_seconds(manifest: Manifest, parts: int) -> float:
    """One rank of ``parts`` wants its share of the rows of every tensor."""
    shape = manifest.tensors[0].shape
    share = shape[0] // parts
    box = Box((share, 0), (share, shape[1]))
    wanted = [(tensor.key, box) for tensor in manifest.tensors]
    start = time.perf_counter()
    plan = plan_load(manifest, wanted)
    runs_of(plan)
    return time.perf_counter() - start


def run() -> dict[str, float]:
    """Seconds of the two cases of the specification."""
    return {
        "load plan of one rank, 3,000 tensors x 64 chunks: seconds": min(
            _plan_seconds(_grid_manifest(3_000, 8, 8), 4) for _ in range(3)
        ),
        "load plan of one rank, 10,000 tensors x 1,024 chunks: seconds": _plan_seconds(
            _grid_manifest(10_000, 32, 32), 8
        ),
    }


if __name__ == "__main__":
    for name, seconds in run().items():
        print(f"{name}: {seconds:.3f}")
