"""Connections opened in a `send_at_once` block send at once; no other connection is touched."""

from __future__ import annotations

import socket

import pytest

from flexstore.groups import nodelay as module
from flexstore.groups.nodelay import send_at_once


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        with send_at_once():
            connection = socket.create_connection(server.getsockname())
            monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 3.0)
        with connection:
            assert not nodelay(connection)
            assert connection.getblocking()


def test_without_a_list_of_descriptors_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DESCRIPTORS", "/nowhere")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with send_at_once():
            connection = socket.create_connection(server.getsockname())
        with connection:
            assert not nodelay(connection)
