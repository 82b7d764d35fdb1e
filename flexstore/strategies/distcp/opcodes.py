"""The pickle opcodes that Paddle's files consist of, protocols 3 to 5. Any other opcode is refused.

Source: the table of `pickletools` in the standard library.
"""

from __future__ import annotations

PROTO = b"\x80"
FRAME = b"\x95"
STOP = b"."

NONE = b"N"
FALSE = b"\x89"
TRUE = b"\x88"
BININT = b"J"
BININT1 = b"K"
BININT2 = b"M"
LONG1 = b"\x8a"
SHORT_BINUNICODE = b"\x8c"
BINUNICODE = b"X"
BINUNICODE8 = b"\x8d"
SHORT_BINBYTES = b"C"
BINBYTES = b"B"
BINBYTES8 = b"\x8e"
BYTEARRAY8 = b"\x96"

EMPTY_TUPLE = b")"
TUPLE1 = b"\x85"
TUPLE2 = b"\x86"
TUPLE3 = b"\x87"
TUPLE = b"t"
EMPTY_LIST = b"]"
APPEND = b"a"
APPENDS = b"e"
EMPTY_DICT = b"}"
SETITEM = b"s"
SETITEMS = b"u"

MARK = b"("
POP = b"0"
BINPUT = b"q"
LONG_BINPUT = b"r"
MEMOIZE = b"\x94"
BINGET = b"h"
LONG_BINGET = b"j"

GLOBAL = b"c"
STACK_GLOBAL = b"\x93"
NEWOBJ = b"\x81"
REDUCE = b"R"
BUILD = b"b"
