"""X9: a name never leaves the root it is resolved under."""

from __future__ import annotations

import pytest

from flexstore.core.names import check_name, is_safe_name
from flexstore.errors import StoreError


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a", "a..", "...", "ü/模型", "a" * 1024])
def test_a_relative_path_is_safe(name: str) -> None:
    assert is_safe_name(name)
    assert check_name(name) is name


@pytest.mark.parametrize(
    "name", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\nb", "\x7f", "a" * 1025]
)
def test_x9_a_name_that_may_leave_the_root_is_refused(name: str) -> None:
    assert not is_safe_name(name)
    with pytest.raises(StoreError, match="unsafe object name") as caught:
        check_name(name)
    assert len(str(caught.value)) < 400
