"""Checksumming memory that is not written: replicas that another rank writes (E13)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flexstore.core.checksum import block_count, block_nbytes, crc32c, digest_of
from flexstore.core.region import Region
from flexstore.pipeline.memory import ItemBytes
from flexstore.planning.files import WriteItem


def digest_items(items: Sequence[WriteItem], regions: Sequence[Region]) -> dict[int, int]:
    """Item index → digest of its bytes in this rank's memory; ``regions[i]`` contains ``items[i].box``."""
    return {item.index: _digest(ItemBytes(region, item.box)) for item, region in zip(items, regions, strict=True)}


def _digest(data: ItemBytes) -> int:
    step = block_nbytes(data.nbytes)
    crcs = (crc32c(data.read(start, min(start + step, data.nbytes))) for start in range(0, data.nbytes, step))
    return digest_of(np.fromiter(crcs, np.uint32, block_count(data.nbytes)))
