"""Plain values: what a checkpoint may hold besides tensors, and how it is written as JSON.

A plain value is None, a bool, int (of any size), float (NaN, infinities and -0.0 included), str, bytes, or a list,
tuple or dict of plain values, nested at most `MAX_DEPTH` deep. `to_json` and `from_json` are exact inverses: types,
order and every value survive. Nothing else is ever stored: no pickles, no classes.

JSON has no word for some of them, so an object with exactly one member, named ``$...``, is a tag:

    {"$tuple": [...]}               a tuple
    {"$dict": [[key, value], ...]}  a dict with keys that are not str, or that start with "$"
    {"$bytes": "<base64>"}          bytes
    {"$int": "0x..."}               an int that does not fit 64 bits
    {"$float": "nan"}               nan, inf or -inf
    {"$str": "<base64>"}            a str that is not valid Unicode (lone surrogates): UTF-8 with surrogatepass
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from flexstore.errors import CorruptCheckpointError, InvalidStateError, UnsupportedValueError

MAX_DEPTH = 64

Plain: TypeAlias = Any
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_HINT = "store tensors, None, bool, int, float, str, bytes, and lists, tuples and dicts of them"


def as_plain(value: object, path: tuple[str, ...] = ()) -> Plain:
    """The value as exact plain types: numpy scalars become Python's, subclasses of containers their base.

    Args:
        value: anything.
        path: where it sits in the state; its pieces count as nesting.

    Raises:
        UnsupportedValueError: it is, or holds, something that is no plain value; names the path and the type.
        InvalidStateError: nested too deep, or a container holds itself.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.generic) and type(value.item()) in _SCALARS:
        return value.item()
    check_depth(path)
    if isinstance(value, dict):
        return {as_plain(k, (*path, str(k))): as_plain(v, (*path, str(k))) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [as_plain(item, (*path, str(i))) for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise UnsupportedValueError(
        f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be stored",
        key=".".join(path),
        hint=_HINT,
    )


def check_depth(path: tuple[str, ...]) -> None:
    """Refuse a container at a path of more than `MAX_DEPTH` pieces.

    Raises:
        InvalidStateError: naming the beginning of the path.
    """
    if len(path) >= MAX_DEPTH:
        raise InvalidStateError(
            f"nested deeper than {MAX_DEPTH} levels at {'.'.join(path[:4])}...",
            hint="does a list or dict contain itself?",
        )


def to_json(value: Plain) -> Json:
    """A plain value as JSON types, all of which any JSON writer can write.

    Raises:
        UnsupportedValueError: not made of exact plain types (see `as_plain`).
        InvalidStateError: nested deeper than `MAX_DEPTH`.
    """
    return _encode(value, ())


def _encode(value: Plain, path: tuple[str, ...]) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if type(value) in _ENCODERS:
        return _ENCODERS[type(value)](value)
    check_depth(path)
    if type(value) is dict:
        return _encode_dict(value, path)
    if type(value) is list:
        return [_encode(item, (*path, str(i))) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_encode(item, (*path, str(i))) for i, item in enumerate(value)]}
    raise UnsupportedValueError(f"a {type(value).__name__} has no JSON form", key=".".join(path), hint=_HINT)


def _encode_dict(value: dict[Any, Plain], path: tuple[str, ...]) -> Json:
    if all(type(key) is str and not key.startswith("$") and _is_unicode(key) for key in value):
        return {key: _encode(item, (*path, key)) for key, item in value.items()}
    below = (*path, "$dict")
    return {"$dict": [[_encode(key, below), _encode(item, below)] for key, item in value.items()]}


def _encode_int(value: int) -> Json:
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": str(value)}


def _encode_str(value: str) -> Json:
    return value if _is_unicode(value) else {"$str": _base64(value.encode("utf-8", "surrogatepass"))}


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_ENCODERS: Mapping[type, Callable[[Any], Json]] = {
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda value: {"$bytes": _base64(value)},
}


def from_json(document: object) -> Plain:
    """The plain value that `to_json` made this document of.

    Args:
        document: as a JSON reader returned it; it may be hostile.

    Raises:
        CorruptCheckpointError: an unknown tag, a tag with a wrong payload, nesting deeper than `MAX_DEPTH`.
    """
    return _decode(document, 0)


def _decode(document: object, depth: int) -> Plain:
    if document is None or isinstance(document, bool | int | float | str):
        return document
    if depth >= MAX_DEPTH:
        raise CorruptCheckpointError(f"a plain value is nested deeper than {MAX_DEPTH} levels")
    if isinstance(document, list):
        return [_decode(item, depth + 1) for item in document]
    if isinstance(document, dict):
        if any(str(key).startswith("$") for key in document):
            return _decode_tag(document, depth)
        return {key: _decode(item, depth + 1) for key, item in document.items()}
    raise CorruptCheckpointError(f"a {type(document).__name__} in a JSON document")


def _decode_tag(document: dict[str, Any], depth: int) -> Plain:
    tag, payload = next(iter(document.items()))
    if len(document) != 1 or tag not in _DECODERS:
        raise CorruptCheckpointError(f"{sorted(document)[:4]} is no tag of a plain value")
    try:
        return _DECODERS[tag](payload, depth)
    except (TypeError, ValueError, binascii.Error) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(f"wrong content of a plain value's tag {tag}: {error}") from error


def _decode_items(payload: object, depth: int) -> list[Plain]:
    if not isinstance(payload, list):
        raise TypeError(f"a {type(payload).__name__} instead of a list")
    return [_decode(item, depth + 1) for item in payload]


def _decode_dict(payload: object, depth: int) -> dict[Any, Plain]:
    pairs = [_pair(item, depth) for item in payload] if isinstance(payload, list) else _decode_items(payload, depth)
    decoded = dict(pairs)
    if len(decoded) != len(pairs):
        raise ValueError("a key occurs twice")
    return decoded


def _pair(item: object, depth: int) -> list[Plain]:
    pair = _decode_items(item, depth)
    if len(pair) != 2:
        raise ValueError(f"a pair of {len(pair)} items")
    return pair


def _decode_int(payload: object, depth: int) -> int:
    return int(_text(payload), 16)


def _decode_float(payload: object, depth: int) -> float:
    value = float(_text(payload))
    if math.isfinite(value):
        raise ValueError(f"{value} is finite")
    return value


def _decode_bytes(payload: object, depth: int) -> bytes:
    return base64.b64decode(_text(payload), validate=True)


def _decode_str(payload: object, depth: int) -> str:
    return _decode_bytes(payload, depth).decode("utf-8", "surrogatepass")


def _text(payload: object) -> str:
    if not isinstance(payload, str):
        raise TypeError(f"a {type(payload).__name__} instead of a string")
    return payload


_DECODERS: Mapping[str, Callable[[Any, int], Plain]] = {
    "$tuple": lambda payload, depth: tuple(_decode_items(payload, depth)),
    "$dict": _decode_dict,
    "$int": _decode_int,
    "$float": _decode_float,
    "$bytes": _decode_bytes,
    "$str": _decode_str,
}
