"""Minimal WebSocket and HTTP clients, so that the load costs less than the server under test."""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Iterator

_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_LENGTHS = {126: 2, 127: 8}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def text(content: bytes) -> bytes:
    """Return a text frame as a client sends it."""
    return frame(_TEXT, content, mask=os.urandom(4))


def binary(content: bytes) -> bytes:
    """Return a binary frame as a client sends it."""
    return frame(_BINARY, content, mask=os.urandom(4))


def frame(
    opcode: int, content: bytes, *, final: bool = True, bits: int = 0, masked: bool = True, mask: bytes = bytes(4)
) -> bytes:
    """Return a frame, which may be invalid; zeros are the fastest mask."""
    size = len(content)
    first, masks = (0x80 if final else 0) | bits << 4 | opcode, 0x80 if masked else 0
    if size < 126:
        head = bytes([first, masks | size])
    elif size < 1 << 16:
        head = bytes([first, masks | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, masks | 127]) + size.to_bytes(8, "big")
    if not masked:
        return head + content
    if any(mask):
        repeated = (mask * (size // 4 + 1))[:size]
        content = (int.from_bytes(content, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
    return head + mask + content


def post(path: str, content: bytes, kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: load\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def connect(port: int, receive_buffer: int | None = None, timeout_s: float = 60.0) -> socket.socket:
    """Connect; small packets are sent at once, and `receive_buffer` limits how much may stay unread."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(timeout_s)
    try:
        sock.connect(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class WebSocketClient:
    """A WebSocket connection; frames are split without parsing their content."""

    def __init__(self, port: int, path: str, receive_buffer: int | None = None) -> None:
        self.sock = connect(port, receive_buffer)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: load\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.sock.recv(4096) or b"closed\r\n\r\n"
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode())
        self._buffer = bytearray()

    def frames(self) -> Iterator[bytes]:
        """Yield received messages; waits for bytes unless the socket is non-blocking."""
        try:
            received = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        if not received:
            raise ConnectionError("the server closed the connection")
        self._buffer += received
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 2:
            extra = _LENGTHS.get(buffer[start + 1], 0)
            body = start + 2 + extra
            size = int.from_bytes(buffer[start + 2 : body], "big") if extra else buffer[start + 1]
            if len(buffer) < body + size:  # also true if the length itself is incomplete
                break
            opcode, content = buffer[start] & 15, bytes(buffer[body : body + size])
            start = body + size
            if opcode == _PING:
                self.sock.sendall(frame(_PONG, content))
            elif opcode == _CLOSE:
                raise ConnectionError(f"the server closed the connection: {content!r}")
            else:
                yield content
        del buffer[:start]

    def wait(self, count: int) -> list[bytes]:
        """Wait for this many messages."""
        found: list[bytes] = []
        while len(found) < count:
            found += self.frames()
        return found

    def close(self) -> None:
        """Close without a closing handshake."""
        self.sock.close()


class HttpClient:
    """A persistent connection; it never sleeps, as waking it would cost the server."""

    def __init__(self, port: int) -> None:
        self.sock = connect(port)
        self.sock.setblocking(False)
        self._buffer = b""

    def send(self, request: bytes) -> None:
        """Send bytes that fit into the buffer."""
        if self.sock.send(request) < len(request):
            raise BlockingIOError("the request does not fit into the buffer")

    def response(self) -> tuple[int, bytes]:
        """Wait for one response; return status and body."""
        while (found := self.poll()) is None:
            pass
        return found

    def poll(self) -> tuple[int, bytes] | None:
        """Read available bytes; return the response if it is complete."""
        try:
            received = self.sock.recv(1 << 20)
        except BlockingIOError:
            return None
        if not received:
            raise ConnectionError("the server closed the connection")
        self._buffer += received
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        length = _LENGTH.search(self._buffer, 0, end)
        size = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < size:
            return None
        found = int(self._buffer[9:12]), self._buffer[end + 4 : size]
        self._buffer = self._buffer[size:]
        return found

    def close(self) -> None:
        self.sock.close()
