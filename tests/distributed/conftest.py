"""Launchers for the tests that start several processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.distributed.launch import launch_paddle, launch_torch


@pytest.fixture(scope="session")
def paddle_launch() -> Callable[..., list[str]]:
    """See `launch_paddle`."""
    return launch_paddle


@pytest.fixture(scope="session")
def torch_launch() -> Callable[..., list[str]]:
    """See `launch_torch`."""
    return launch_torch
