"""Element types by their one name, and as numpy sees them.

Names are the bare ones that Paddle, torch and numpy share (``bfloat16``, ``float8_e4m3fn``, …). bfloat16 and the two
8-bit floats come from ml_dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from flexstore.errors import UnsupportedValueError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: its name in the manifest.
        numpy: the little-endian numpy dtype of the same width.
    """

    name: str
    numpy: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_numpy_native(self) -> bool:
        """False for the types that numpy itself does not know (bfloat16, 8-bit floats)."""
        return self.numpy.kind != "V" and self.numpy.isbuiltin == 1

    def __str__(self) -> str:
        return self.name


_NATIVE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTENDED = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
DTYPES: dict[str, DType] = {name: DType(name, np.dtype(name)) for name in _NATIVE} | {
    name: DType(name, np.dtype(scalar)) for name, scalar in _EXTENDED.items()
}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def dtype_named(name: str) -> DType:
    """The dtype of that name.

    Raises:
        UnsupportedValueError: no such dtype.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedValueError(f"unknown dtype {name!r}", hint=f"known: {', '.join(sorted(DTYPES))}") from None


@cache
def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """The dtype that a numpy array has (any byte order).

    Raises:
        UnsupportedValueError: strings, objects, structured and other types that are not tensor elements.
    """
    native = numpy_dtype.newbyteorder("=")
    if native not in _BY_NUMPY:
        raise UnsupportedValueError(
            f"arrays of dtype {numpy_dtype} cannot be stored as tensors",
            hint=f"known: {', '.join(sorted(DTYPES))}",
        )
    return _BY_NUMPY[native]
