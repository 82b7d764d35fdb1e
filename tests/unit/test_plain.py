"""Plain values as JSON: an exact round trip, and no trust in what is read."""

import json
import math
import struct
from collections import OrderedDict, namedtuple

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.plain import MAX_DEPTH, as_plain, from_json, to_json
from flexstore.errors import CorruptCheckpointError, InvalidStateError, UnsupportedValueError

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**70)
    | st.floats()
    | st.binary()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from(["$", "$bytes", "$dict", ""])
)
keys = scalars.filter(lambda key: key == key)
plain_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=20,
)


def identical(one, other):
    """Equal in type, value and order; NaN equals NaN and 0.0 does not equal -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, dict):
        return identical(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return one == other


@given(plain_values)
def test_json_round_trip_is_exact(value):
    for dumps, loads in ((json.dumps, json.loads), (msgspec.json.encode, msgspec.json.decode)):
        assert identical(from_json(loads(dumps(to_json(value)))), value)


@given(plain_values)
def test_json_needs_no_extensions_of_the_standard(value):
    json.dumps(to_json(value), allow_nan=False).encode("utf-8")


@given(plain_values)
def test_plain_values_are_plain_already(value):
    assert identical(as_plain(value), value)


def test_large_int_passes_the_interpreter_limit_on_decimal_digits():
    assert from_json(to_json(-(10**5000))) == -(10**5000)


def test_numpy_scalars_and_container_subclasses_become_plain():
    point = namedtuple("point", "x y")
    given_value = OrderedDict(a=np.float32(0.5), b=[np.int64(3), np.bool_(True)], c=point(np.str_("s"), 1))
    wanted = {"a": 0.5, "b": [3, True], "c": ("s", 1)}
    assert identical(as_plain(given_value), wanted)
    assert identical(as_plain(ml_dtypes.bfloat16(1.5)), 1.5)


@pytest.mark.parametrize(
    "value", [object(), {1}, 1j, np.datetime64("2020"), np.longdouble(1), range(3), bytearray(b"")]
)
def test_r4_unsupported_values_are_refused_with_path_and_type(value):
    with pytest.raises(UnsupportedValueError, match=type(value).__name__) as caught:
        as_plain({"a": [value]}, ("top",))
    assert caught.value.key == "top.a.0"


def test_to_json_refuses_what_is_not_plain():
    with pytest.raises(UnsupportedValueError, match="OrderedDict"):
        to_json([OrderedDict()])


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_bounded_when_written_and_read():
    deepest = nested(MAX_DEPTH)
    assert from_json(to_json(as_plain(deepest))) == deepest
    for function in (as_plain, to_json):
        with pytest.raises(InvalidStateError, match="64 levels"):
            function(nested(MAX_DEPTH + 1))
    with pytest.raises(CorruptCheckpointError, match="64 levels"):
        from_json(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "document",
    [
        {"$object": "os.system"},
        {"$bytes": "AA==", "more": 1},
        {"a": 1, "$bytes": "AA=="},
        {"$bytes": "not base64!"},
        {"$bytes": "é"},
        {"$bytes": 3},
        {"$int": "seven"},
        {"$int": 7},
        {"$float": "1.5"},
        {"$float": "many"},
        {"$float": None},
        {"$str": "/w=="},
        {"$tuple": {"0": 1}},
        {"$tuple": None},
        {"$dict": {"a": 1}},
        {"$dict": [[1, 2, 3]]},
        {"$dict": ["ab"]},
        {"$dict": [[[], 1]]},
        {"$dict": [[1, 2], [1, 3]]},
        {"a": [{"$": 1}]},
        b"bytes",
        {"a": object()},
    ],
)
def test_x9_hostile_documents_are_refused(document):
    with pytest.raises(CorruptCheckpointError):
        from_json(document)
