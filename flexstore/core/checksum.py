"""Block CRC-32C.

Every chunk is cut into blocks of `block_nbytes` (the last may be short), each with its own CRC-32C (Castagnoli), so
that a ranged read can be verified by reading little more than the range.
"""

from __future__ import annotations

import google_crc32c
import numpy as np
import numpy.typing as npt

_SMALLEST = 64 << 10
_LARGEST = 1 << 20


def block_nbytes(nbytes: int) -> int:
    """Bytes per checksum block of a chunk of ``nbytes`` bytes: a power of two near 1/64 of it, 64 KiB to 1 MiB.

    A ranged read is rounded out to blocks, so it reads at most two blocks more than was asked for.
    """
    return min(_LARGEST, max(_SMALLEST, 1 << max(0, (nbytes // 64).bit_length() - 1)))


def block_count(nbytes: int) -> int:
    """Number of checksum blocks of a chunk."""
    return -(-nbytes // block_nbytes(nbytes))


def crc32c(data: npt.NDArray[np.uint8] | bytes, crc: int = 0) -> int:
    """CRC-32C of ``data`` (contiguous uint8), continuing from ``crc``."""
    return int(google_crc32c.extend(crc, data))


def block_crcs(data: npt.NDArray[np.uint8], block: int) -> list[int]:
    """The CRC-32C of every ``block`` bytes of ``data``."""
    if data.size <= block:
        return [crc32c(data)]
    return [crc32c(data[start : start + block]) for start in range(0, data.size, block)]


def digest_of(crcs: npt.NDArray[np.uint32]) -> int:
    """One number for the block CRCs of a chunk, to compare replicas by."""
    return crc32c(np.ascontiguousarray(crcs, "<u4").view(np.uint8))
