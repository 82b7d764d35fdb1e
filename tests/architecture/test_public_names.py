"""The public names are pinned: adding or removing one is a decision, with a line in CHANGELOG.md."""

from __future__ import annotations

import importlib
import inspect

import pytest

import flexstore as fs

PUBLIC = {
    "Box",
    "Checkpoint",
    "FlexstoreError",
    "LoadReport",
    "PendingSave",
    "ProcessGroup",
    "ShardedTensor",
    "__version__",
    "build_sharded_state_dict",
    "load",
    "open_checkpoint",
    "register_backend",
    "register_strategy",
    "reshard",
    "save",
    "shard_weight",
    "strategies",
}


def test_public_names_are_pinned():
    assert set(fs.__all__) == PUBLIC
    assert fs.__all__ == sorted(fs.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_is_there_and_documented(name):
    value = getattr(fs, name)
    assert name in dir(fs)
    if name != "__version__":
        assert inspect.getdoc(value)
        assert callable(value)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fs.no_such_name


def test_strategies_can_be_called_although_it_is_a_package_too():
    importlib.import_module("flexstore.strategies.base")
    assert {"distcp", "safetensors"} <= {status.name for status in fs.strategies()}
