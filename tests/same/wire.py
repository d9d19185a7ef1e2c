"""HTTP and WebSockets on a bare socket: what is sent is stated byte by byte, and what is received is recorded.

A record states each response and then how the connection ends: `kept` (the next request on it is answered), `closed`,
`reset`, or `silent` (nothing within WAIT_S).
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.load import frames

WAIT_S = 20.0
"""The longest wait for what must arrive."""

PAUSE_S = 0.05
"""Time between two parts of a request, so that the server reads them separately; no result depends on it."""

MASK = b"\x01\x02\x03\x04"
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: same\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)
LAST = {"type": "begin", "id": "last", "deadline_ms": 0}
"""A prediction that is answered at once: everything before it was read when its answer arrives."""

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class Ended(Exception):
    """The connection ended: closed, reset or silent."""


def request(method: str, path: str, body: bytes | None = None, *headers: str) -> bytes:
    """Return a request; one with a body has its length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: same", *headers]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def frame(
    content: bytes | str, opcode: int = TEXT, *, last: bool = True, reserved: int = 0, masked: bool = True
) -> bytes:
    """Return a WebSocket frame of a client, which may be invalid."""
    content = content.encode() if isinstance(content, str) else content
    return frames.frame(opcode, content, final=last, bits=reserved, masked=masked, mask=MASK)


def message(fields: Any, *, packed: bool = False) -> bytes:
    """Return a message as a frame of JSON, or of MessagePack."""
    return frame(msgspec.msgpack.encode(fields), BINARY) if packed else frame(json.dumps(fields))


@dataclass
class Connection:
    """A connection to the server on this machine."""

    port: int

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def send(self, parts: Iterable[bytes]) -> None:
        """Send parts with a pause between them; the server may end the connection before the last."""
        with contextlib.suppress(OSError):  # what the server sent before it ended is still read
            for place, part in enumerate(parts):
                if place:
                    time.sleep(PAUSE_S)
                self.socket.sendall(part)

    def _more(self) -> None:
        try:
            received = self.socket.recv(65536)
        except TimeoutError:
            raise Ended("silent") from None
        except OSError:
            raise Ended("reset") from None
        if not received:
            raise Ended("closed")
        self._received += received

    def read(self, size: int) -> bytes:
        while len(self._received) < size:
            self._more()
        found, self._received = self._received[:size], self._received[size:]
        return found

    def line(self) -> bytes:
        while b"\n" not in self._received:
            self._more()
        return self.read(self._received.index(b"\n") + 1)

    def head(self) -> dict[str, Any]:
        status = self.line().decode("latin-1").strip()
        headers = []
        while line := self.line().decode("latin-1").strip():
            headers.append(line.split(": ", 1))
        return {"status": status, "headers": headers}

    def response(self, method: str = "GET") -> dict[str, Any]:
        """Read a response; its length is checked and left out, because it follows from the times in the body."""
        found = self.head()
        values = {name.lower(): value for name, value in found["headers"]}
        body = b""
        if values.get("transfer-encoding") == "chunked":
            while size := int(self.line(), 16):
                body += self.read(size + 2)[:-2]
            self.line()
        elif method != "HEAD" and found["status"].split(" ")[1] not in ("204", "304", "101", "100"):
            body = self.read(int(values.get("content-length", 0)))
            found["headers"] = [each for each in found["headers"] if each[0].lower() != "content-length"]
        return found | {"body": decoded(body, values.get("content-type", ""))}

    def frames(self, until: Any = ...) -> list[Any]:
        """Read messages until the reply to a prediction, or until the end of the connection, which is the last item."""
        found: list[Any] = []
        try:
            while True:
                first, second = self.read(2)
                size = second & 127
                if size > 125:
                    size = int.from_bytes(self.read(2 if size == 126 else 8), "big")
                content, opcode = self.read(size), first & 15
                if opcode == CLOSE:
                    found.append({"close": int.from_bytes(content[:2], "big"), "why": content[2:].decode()})
                elif opcode in (TEXT, BINARY):
                    fields = json.loads(content) if opcode == TEXT else msgspec.msgpack.decode(content)
                    found.append({"form": "text" if opcode == TEXT else "binary", "message": fields})
                    if fields["id"] == until and fields["type"] != "update":
                        return found
                else:
                    found.append({"frame": first, "content": content.decode("latin-1")})
        except Ended as end:
            return [*found, str(end)]

    def ending(self) -> str:
        """Return how the connection ends: another request on it is answered, or it is over."""
        with contextlib.suppress(OSError):
            self.socket.sendall(request("GET", "/livez"))
        try:
            status = str(self.response()["status"])
        except Ended as end:
            return "closed" if str(end) == "reset" else str(end)  # a request to a closed connection is answered by RST
        except ValueError:
            return "unreadable"
        return "kept" if status == "HTTP/1.1 200 OK" else status

    def end(self) -> str:
        """Wait until the server ends the connection; return how."""
        try:
            while True:
                self._more()
                self._received = b""
        except Ended as end:
            return str(end)
        finally:
            self.socket.close()


def decoded(body: bytes, kind: str) -> Any:
    """Return a body as its content type says; text where it is not valid."""
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        if "msgpack" in kind:
            return msgspec.msgpack.decode(body)
        if "json" in kind:
            return json.loads(body)
    return body.decode("latin-1")


def exchange(port: int, *parts: bytes, answers: int = 1) -> list[Any]:
    """Send a request, or several, in parts; return the responses and how the connection ends."""
    connection = Connection(port)
    connection.send(parts)
    method = parts[0].split(b" ", 1)[0].decode("latin-1")
    found: list[Any] = []
    try:
        for _ in range(answers):
            found.append(connection.response(method))  # noqa: PERF401  (those before the end are kept)
    except Ended as end:
        return [*found, str(end)]
    announced = ["connection", "close"] in [[each.lower() for each in pair] for pair in found[-1]["headers"]]
    found.append(connection.end() if announced else connection.ending())
    connection.socket.close()
    return found


def stream(
    port: int,
    *frames: bytes,
    more: str = "Sec-WebSocket-Protocol: anytime.v1\r\n",
    last: dict[str, Any] = LAST,
    wait: Any = None,
    path: str = "/stream",
) -> list[Any]:
    """Open a WebSocket and send frames; return the response to the handshake and all messages, to the end.

    With `wait` the answer to that prediction is awaited before the `last` one begins. Whether a server that closes
    resets the connection depends on whether the last message arrives before: both are recorded as `closed`.
    """
    connection = Connection(port)
    connection.send([HANDSHAKE.format(path=path, more=more).encode()])
    found: list[Any] = []
    try:
        found.append(connection.response())
    except Ended as end:
        return [str(end)]
    if not found[0]["status"].startswith("HTTP/1.1 101"):
        return [*found, connection.ending()]
    connection.send(frames)
    if wait is not None:
        found += connection.frames(wait)
    if isinstance(found[-1], dict):
        connection.send([message(last)])
        found += connection.frames("last")
    if isinstance(found[-1], dict):
        connection.send([frame(b"\x03\xe8", CLOSE)])
        found += connection.frames()
    connection.socket.close()
    return [*found[:-1], "closed" if found[-1] == "reset" else found[-1]]
