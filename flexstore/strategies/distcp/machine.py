"""A pickle machine that executes nothing.

It understands the opcodes in `opcodes` and the names in the allow-list it is given, and makes inert values of them:
None, bool, int, str, tuple, list, dict, `Payload`, and whatever the allow-list's recipes return. It never imports,
calls or looks up anything else. Bytes are not loaded: a bytes literal becomes a `Payload`, its place in the file.

Memory is bounded by the structure's bytes, which `Window` limits: an opcode takes at least one byte and makes at most
one small object, the stack and the marks are limited, lengths are checked before anything is read, and memo numbers are
dictionary keys, not array positions. Values may nest to any depth or contain themselves; nothing here or in the callers
walks them recursively.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from flexstore.errors import CorruptCheckpointError
from flexstore.strategies.distcp import opcodes as op
from flexstore.strategies.distcp.window import Refusal, Window

MAX_PROTOCOL = 5
MAX_STACK = 1 << 16
MAX_MARKS = 64
MAX_TEXT = 1 << 16
MAX_NDIM = 64
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Payload:
    """A bytes literal: where it lies in the file, in bytes."""

    offset: int
    nbytes: int


class Buildable(ABC):
    """A value that BUILD may complete, once."""

    __slots__ = ()

    @abstractmethod
    def build(self, state: object) -> None:
        """Take over ``state``.

        Raises:
            Refusal: it is not what the value expects.
        """


Recipe: TypeAlias = Callable[[tuple[object, ...]], object]
AllowList: TypeAlias = Mapping[tuple[str, str], Recipe]


@dataclass(frozen=True, slots=True)
class Name:
    """An allowed ``module``, ``name`` pair, and what stands in for a call of it."""

    module: str
    name: str
    recipe: Recipe


class Record(Buildable):
    """An instance of a plain class: its fields.

    Hashed by identity, so that it can be a dictionary key before its fields are checked.
    """

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fields: dict[object, object] = {}

    def build(self, state: object) -> None:
        if not isinstance(state, dict) or self.fields:
            raise Refusal(f"the state of a {self.kind} must be one dict")
        self.fields = state


def record_of(kind: str) -> Recipe:
    """The recipe of a plain class that is made without arguments."""

    def recipe(args: tuple[object, ...]) -> Record:
        if args:
            raise Refusal(f"{kind} is made with arguments")
        return Record(kind)

    return recipe


def numbers(value: object, what: str) -> tuple[int, ...]:
    """``value`` as the numbers of a shape or an offset.

    Raises:
        Refusal: it is not a tuple of at most `MAX_NDIM` ints that are not negative and fit 64 bits.
    """
    if not isinstance(value, tuple) or len(value) > MAX_NDIM:
        raise Refusal(f"{what} is not a tuple of at most {MAX_NDIM} numbers")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in value):
        raise Refusal(f"{what} holds something that is not a number between 0 and 2**63")
    return value


def run(window: Window, allowed: AllowList) -> object:
    """Read one pickle.

    Args:
        window: at the pickle's first byte.
        allowed: the names it may use.

    Raises:
        CorruptCheckpointError: it is truncated, malformed, too large, or uses an opcode or a name that is not allowed.
    """
    machine = _Machine(window, allowed)
    try:
        return machine.run()
    except Refusal as refusal:
        raise CorruptCheckpointError(
            f"not a valid Paddle checkpoint file: {refusal} (near byte {window.position})",
            file=window.name,
            hint="the file is damaged, cut short, or was not written by a checkpoint library; nothing was executed",
        ) from None


class _Machine:
    def __init__(self, window: Window, allowed: AllowList) -> None:
        self.window = window
        self.allowed = allowed
        self.stack: list[object] = []
        self.marked: list[list[object]] = []  # the stacks below each mark
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        take = self.window.take
        try:
            while (opcode := take(1)) != op.STOP:
                handler = _HANDLERS.get(opcode)
                if handler is None:
                    raise Refusal(f"opcode {opcode!r} is not allowed")
                handler(self)
                if len(self.stack) > MAX_STACK:
                    raise Refusal(f"more than {MAX_STACK} values on the stack")
            return self.stack.pop()
        except IndexError:
            raise Refusal("a value is taken from an empty stack") from None

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.window.take(width), "little")

    def text(self, nbytes: int) -> str:
        if nbytes > MAX_TEXT:
            raise Refusal(f"a string of {nbytes} bytes; at most {MAX_TEXT} are allowed")
        return _decoded(self.window.take(nbytes))

    def items(self) -> list[object]:
        """What lies above the last mark, which is removed."""
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def push_name(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refusal("a global name is not a string")
        recipe = self.allowed.get((module, name))
        if recipe is None:
            raise Refusal(f"the global {module[:_MAX_NAME]!r} {name[:_MAX_NAME]!r} is not allowed")
        self.stack.append(Name(module, name, recipe))

    def set_items(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise Refusal("items are set in something that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | Record):
                raise Refusal(f"a dict key is a {type(key).__name__}")
            if key in target:
                raise Refusal("a dict key occurs twice" if isinstance(key, Record) else f"the key {key!r} occurs twice")
            target[key] = value

    def extend(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Refusal("items are appended to something that is not a list")
        target.extend(items)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refusal("a string is not UTF-8") from None


_Handler: TypeAlias = Callable[[_Machine], None]


def _proto(machine: _Machine) -> None:
    protocol = machine.unsigned(1)
    if protocol > MAX_PROTOCOL:
        raise Refusal(f"pickle protocol {protocol}")


def _frame(machine: _Machine) -> None:
    machine.window.take(8)  # its length is a hint that nothing here relies on


def _constant(value: object) -> _Handler:
    return lambda machine: machine.stack.append(value)


def _unsigned(width: int) -> _Handler:
    return lambda machine: machine.stack.append(machine.unsigned(width))


def _int4(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.window.take(4), "little", signed=True))


def _long1(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.window.take(machine.unsigned(1)), "little", signed=True))


def _text(width: int) -> _Handler:
    return lambda machine: machine.stack.append(machine.text(machine.unsigned(width)))


def _payload(width: int) -> _Handler:
    def handler(machine: _Machine) -> None:
        nbytes = machine.unsigned(width)
        machine.stack.append(Payload(machine.window.position, nbytes))
        machine.window.skip(nbytes)

    return handler


def _short_tuple(length: int) -> _Handler:
    def handler(machine: _Machine) -> None:
        stack = machine.stack
        if len(stack) < length:
            raise IndexError
        stack[-length:] = [tuple(stack[-length:])]

    return handler


def _tuple(machine: _Machine) -> None:
    items = machine.items()
    machine.stack.append(tuple(items))


def _append(machine: _Machine) -> None:
    machine.extend([machine.stack.pop()])


def _appends(machine: _Machine) -> None:
    machine.extend(machine.items())


def _setitem(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.set_items([machine.stack.pop(), value])


def _setitems(machine: _Machine) -> None:
    machine.set_items(machine.items())


def _mark(machine: _Machine) -> None:
    if len(machine.marked) >= MAX_MARKS:
        raise Refusal(f"more than {MAX_MARKS} open marks")
    machine.marked.append(machine.stack)
    machine.stack = []


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _put(width: int) -> _Handler:
    def handler(machine: _Machine) -> None:
        machine.memo[machine.unsigned(width)] = machine.stack[-1]

    return handler


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(width: int) -> _Handler:
    def handler(machine: _Machine) -> None:
        number = machine.unsigned(width)
        if number not in machine.memo:
            raise Refusal(f"the memo has no entry {number}")
        machine.stack.append(machine.memo[number])

    return handler


def _global(machine: _Machine) -> None:
    module = _decoded(machine.window.take_line(_MAX_NAME))
    machine.push_name(module, _decoded(machine.window.take_line(_MAX_NAME)))


def _stack_global(machine: _Machine) -> None:
    name = machine.stack.pop()
    machine.push_name(machine.stack.pop(), name)


def _make(machine: _Machine) -> None:
    args, made = machine.stack.pop(), machine.stack.pop()
    if not isinstance(made, Name) or not isinstance(args, tuple):
        raise Refusal("something that is not an allowed global is called")
    machine.stack.append(made.recipe(args))


def _build(machine: _Machine) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if not isinstance(target, Buildable):
        raise Refusal("a state is given to a value that takes none")
    target.build(state)


_HANDLERS: dict[bytes, _Handler] = {
    op.PROTO: _proto,
    op.FRAME: _frame,
    op.NONE: _constant(None),
    op.FALSE: _constant(False),
    op.TRUE: _constant(True),
    op.BININT: _int4,
    op.BININT1: _unsigned(1),
    op.BININT2: _unsigned(2),
    op.LONG1: _long1,
    op.SHORT_BINUNICODE: _text(1),
    op.BINUNICODE: _text(4),
    op.BINUNICODE8: _text(8),
    op.SHORT_BINBYTES: _payload(1),
    op.BINBYTES: _payload(4),
    op.BINBYTES8: _payload(8),
    op.BYTEARRAY8: _payload(8),
    op.EMPTY_TUPLE: _constant(()),
    op.TUPLE1: _short_tuple(1),
    op.TUPLE2: _short_tuple(2),
    op.TUPLE3: _short_tuple(3),
    op.TUPLE: _tuple,
    op.EMPTY_LIST: lambda machine: machine.stack.append([]),
    op.APPEND: _append,
    op.APPENDS: _appends,
    op.EMPTY_DICT: lambda machine: machine.stack.append({}),
    op.SETITEM: _setitem,
    op.SETITEMS: _setitems,
    op.MARK: _mark,
    op.POP: _pop,
    op.BINPUT: _put(1),
    op.LONG_BINPUT: _put(4),
    op.MEMOIZE: _memoize,
    op.BINGET: _get(1),
    op.LONG_BINGET: _get(4),
    op.GLOBAL: _global,
    op.STACK_GLOBAL: _stack_global,
    op.NEWOBJ: _make,
    op.REDUCE: _make,
    op.BUILD: _build,
}
