"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import flexstore as fs
from flexstore.backends import BACKENDS
from tests.stories_kit import LentStore

# No deadlines: the machine may be busy. In CI the examples are the same in every run.
settings.register_profile("flexstore", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("flexstore")


@pytest.fixture(scope="module")
def handed() -> Iterator[None]:
    """A backend ``handed://`` that is whatever store its options hand over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BACKENDS, "_registered", dict(BACKENDS._registered))
        fs.register_backend("handed", lambda url, *, store: LentStore(store))
        yield
