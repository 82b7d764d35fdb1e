"""The drawing of the error tree in errors.py is true, and every error survives the way to another rank."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from flexstore import errors
from flexstore.core.box import Box

BRANCH = re.compile(r"^    (?P<indent>[ │├└─]*)(?P<name>[A-Z]\w+)(?: +(?P<base>[A-Z]\w+))?(?:  |$)")
PLACES = {"key": "w", "box": Box((0, 2), (4, 2)), "rank": 3, "file": "3_1.distcp", "step": "survey", "hint": "wait"}


def drawn() -> dict[str, set[str]]:
    """Error name → names of its direct bases, as the docstring of errors.py draws them."""
    bases: dict[str, set[str]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = BRANCH.match("    " + line.removeprefix("    ")) if line.startswith("    ") else None
        if match is None:
            continue
        depth = len(match["indent"])
        above = [(d, name) for d, name in above if d < depth]
        parent = above[-1][1] if above else "Exception"
        bases[match["name"]] = {parent} | ({match["base"]} if match["base"] else set())
        above.append((depth, match["name"]))
    return bases


def defined() -> dict[str, type[errors.FlexstoreError]]:
    classes = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in classes if cls.__module__ == errors.__name__}


def test_the_drawing_is_the_tree():
    assert drawn() == {name: {base.__name__ for base in cls.__bases__} for name, cls in defined().items()}


def test_every_error_below_the_groups_is_also_a_builtin():
    groups = {errors.FlexstoreError, errors.CheckpointError}
    for cls in set(defined().values()) - groups:
        assert any(hasattr(builtins, base.__name__) and base is not Exception for base in cls.__mro__[1:-3]), cls


@pytest.mark.parametrize("cls", defined().values(), ids=defined().keys())
def test_every_error_is_picklable_with_its_attributes(cls):
    error = cls("it broke", **PLACES)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.box == PLACES["box"]


def test_own_attributes_are_pickled_too():
    mismatch = errors.StateMismatchError("no", missing=("a",), unexpected=("b",), mismatched=("c",))
    late = errors.GroupTimeoutError("late", absent=(1, 2), step="survey")
    copies = pickle.loads(pickle.dumps((mismatch, late)))
    assert (copies[0].missing, copies[0].unexpected, copies[0].mismatched) == (("a",), ("b",), ("c",))
    assert copies[1].absent == (1, 2)


def test_a_message_says_what_where_and_what_to_do():
    text = str(errors.CorruptCheckpointError("wrong checksum", key="w", file="0_1.distcp", hint="restore the file"))
    assert text == "wrong checksum [key=w, file=0_1.distcp]\n  hint: restore the file"


def test_located_fills_in_only_what_is_unknown():
    error = errors.FlexstoreError("x", rank=1).located(rank=2, key="w")
    assert (error.rank, error.key) == (1, "w")
    with pytest.raises(TypeError, match="planet"):
        error.located(planet="mars")
