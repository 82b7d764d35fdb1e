"""Strategies by name. Lazy: a format's module is imported when it is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from flexstore.backends.base import Store
from flexstore.plugins import PluginInfo, PluginStatus, Registry
from flexstore.strategies.base import LoadStrategy, Strategy

STRATEGIES: Registry[Callable[[], Strategy]] = Registry(
    "strategy",
    "flexstore.strategies",
    {
        "distcp": PluginInfo(
            "flexstore.strategies.distcp.format:DistcpFormat",
            "Paddle flex checkpoint: paddle.distributed.load_state_dict reads it (default)",
        ),
        "safetensors": PluginInfo(
            "flexstore.strategies.safetensors:SafetensorsFormat",
            "one safetensors file per writer; a Hugging Face directory if every tensor is whole",
        ),
    },
)


def strategy_named(strategy: str | Strategy) -> Strategy:
    """The strategy of that name; a strategy object is returned as it is.

    Raises:
        UnknownPluginError, MissingDependencyError: see `Registry.get`.
    """
    return STRATEGIES.get(strategy)() if isinstance(strategy, str) else strategy


def detect_strategy(store: Store) -> LoadStrategy | None:
    """The format of a checkpoint that another program wrote, or None if there is none.

    Formats whose package is not installed are not asked.
    """
    for status in STRATEGIES.describe():
        if status.installed:
            found = strategy_named(status.name)
            if found.detect(store):
                return found
    return None


def register_strategy(
    name: str, factory: Callable[[], Strategy], *, replace: bool = False, description: str = ""
) -> None:
    """Make a strategy known by name.

    Args:
        name: what `flexstore.save` will accept as ``strategy=``.
        factory: makes the strategy; called without arguments.
        replace: take the place of a strategy of that name, for good.
        description: one line for `strategies`.

    Raises:
        DuplicatePluginError: the name is taken and ``replace`` was not given.
    """
    STRATEGIES.register(name, factory, replace=replace, description=description)


def strategies() -> list[PluginStatus]:
    """All known strategies: name, one line, whether what they need is installed."""
    return list(STRATEGIES.describe())


class _CallableModule(ModuleType):
    """Importing this package puts it in place of the public function ``flexstore.strategies``: so it is both."""

    def __call__(self) -> list[PluginStatus]:
        return strategies()


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["STRATEGIES", "detect_strategy", "register_strategy", "strategies", "strategy_named"]
