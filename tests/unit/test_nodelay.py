"""Connections opened in a `send_at_once` block send at once; no other connection is touched."""

from __future__ import annotations

import socket
import sys

import pytest

from flexstore.groups.nodelay import send_at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed on Linux only")


def nodelay(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_only_connections_of_the_block_are_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as before:
        with send_at_once():
            inside = socket.create_connection(server.getsockname())
            pair = socket.socketpair()
        with inside, pair[0], pair[1], socket.create_connection(server.getsockname()) as after:
            assert [nodelay(c) for c in (before, inside, after)] == [False, True, False]
            assert inside.getblocking()
            inside.sendall(b"still open")


def test_a_default_timeout_leaves_connections_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        inside = connection.dup()
        with inside, send_at_once():
            monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 3.0)
            late = socket.create_connection(server.getsockname(), timeout=None)
        with late:
            assert not nodelay(late)
            assert late.getblocking()
