"""URLs of storage: which backend they belong to, and how to show them. Pure; no backend is asked."""

from __future__ import annotations

import re

# A user part ends with the last "@" before the first "/". But secrets may hold a bare "/", so a "user:secret@" may
# also reach past it; a "host:port/" is not taken for one.
_USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/?#:]*:(?!\d+/)[^?#@]*)@")
_QUERY_VALUE = re.compile(r"([?&][^=&#]+)=[^&#]*")


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case; ``file`` for a plain path (which has no ``://``, or a ``/`` before it)."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and "/" not in scheme else "file"


def redacted(url: str) -> str:
    """``url`` as it may be shown: without the user part, and without the values of its query. Paths stay as they are.

    ``s3://key:secret@host/a?token=abc`` becomes ``s3://host/a?token=***``.
    """
    return url if scheme_of(url) == "file" else _QUERY_VALUE.sub(r"\1=***", _USER.sub("", url))
