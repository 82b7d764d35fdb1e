"""Laws of the manifest's document."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.manifest import Manifest
from flexstore.core.manifest_json import decode, encode
from flexstore.testing.generators import dtypes, shapes, tilings
from tests.manifest_kit import manifest_of

_TEXT = st.text(max_size=12)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tensors = {}
    for key in draw(st.lists(_TEXT, max_size=6, unique=True)):
        shape = draw(shapes())
        tensors[key] = (draw(dtypes()), shape, draw(tilings(shape)))
    common: dict[str, Any] = draw(st.dictionaries(_TEXT, _PLAIN, max_size=4))
    paths = {key: tuple(draw(st.lists(_TEXT, min_size=1, max_size=3))) for key in common}
    return manifest_of(tensors, common=common, common_paths=paths, created=draw(st.floats(0, 2**40)))


@given(manifests())
def test_decode_is_the_inverse_of_encode(manifest: Manifest) -> None:
    again = decode(encode(manifest))
    for field in fields(Manifest):
        if field.name != "chunks":
            assert getattr(again, field.name) == getattr(manifest, field.name)
    for field in fields(manifest.chunks):
        assert np.array_equal(getattr(again.chunks, field.name), getattr(manifest.chunks, field.name))


@given(manifests())
def test_one_manifest_has_one_document(manifest: Manifest) -> None:
    data = encode(manifest)
    assert encode(decode(data)) == data
