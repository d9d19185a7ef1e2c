"""A WebSocket as bytes, for the tests."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.frames import Frame, Opcode

from service.serving import Connection, Running
from waiting import WAIT_S

HANDSHAKE = (
    b"GET /stream HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)


@contextmanager
def raw(service: Running, receive_buffer: int | None = None, key: str | None = None) -> Iterator[Connection]:
    """A WebSocket of which a test decides what is written and read."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", service.port))
    with Connection(sock) as connection:
        shake_hands(connection, key)
        yield connection


def shake_hands(connection: Connection, key: str | None = None) -> None:
    """Open a WebSocket on a connection."""
    connection.send(HANDSHAKE if key is None else HANDSHAKE[:-2] + f"Authorization: Bearer {key}\r\n\r\n".encode())
    assert b" 101 " in connection.file.readline()
    while connection.file.readline().strip():
        pass


def text(content: bytes | dict[str, Any]) -> bytes:
    """One message as a client writes it."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Frame(Opcode.TEXT, data).serialize(mask=True)


def read_frame(connection: Connection) -> tuple[int, bytes]:
    """Read one frame: opcode and payload."""
    first, size = connection.file.read(2)
    if size >= 126:
        size = int.from_bytes(connection.file.read(2 if size == 126 else 8), "big")
    return first & 15, connection.file.read(size)
