"""Object names: relative, ``/``-separated paths that never leave the root they are resolved under (X9).

One rule for what a store accepts and for what a manifest or foreign metadata may name.
"""

from __future__ import annotations

from flexstore.errors import StoreError

_LONGEST = 1024
_SHOWN = 200


def is_safe_name(name: str) -> bool:
    """True if ``name`` is 1 to 1,024 characters of plain pieces.

    No piece is empty, ``.`` or ``..``; none holds a backslash or a control character.
    """
    return (
        0 < len(name) <= _LONGEST
        and "\\" not in name
        and not any(ord(char) < 32 or ord(char) == 127 for char in name)
        and not any(piece in ("", ".", "..") for piece in name.split("/"))
    )


def check_name(name: str) -> str:
    """Return ``name`` if it is a safe object name.

    Raises:
        StoreError: it is not (`is_safe_name`).
    """
    if not is_safe_name(name):
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
        raise StoreError(f"unsafe object name {shown!r}", hint="names are relative, without '..' or empty pieces")
    return name
