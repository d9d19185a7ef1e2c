"""WebSockets (RFC 6455), without I/O: the check of handshakes, and frames.

Frames of a client are read in any pieces, and those of the server written. The payload of a long frame is unmasked as
it arrives and not all at once at the end, and a message in one frame is not copied. There are no extensions: messages
are small, and latency matters most.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection
from hashlib import sha1

import numpy as np
from websockets.exceptions import ProtocolError
from websockets.frames import Close, Opcode

CONTROL = 8  # the first opcode of control frames

_FIN, _RESERVED, _OPCODE, _MASKED, _SIZE = 0x80, 0x70, 0x0F, 0x80, 0x7F
_CONTROLS = {_FIN | Opcode.CLOSE, _FIN | Opcode.PING, _FIN | Opcode.PONG}
_OUTSIDE = frozenset((Opcode.TEXT, Opcode.BINARY, _FIN | Opcode.TEXT, _FIN | Opcode.BINARY, *_CONTROLS))
"""First bytes of valid frames outside a message."""
_INSIDE = frozenset((Opcode.CONT, _FIN | Opcode.CONT, *_CONTROLS))  # inside one
_FEW = 256  # bytes that a whole number unmasks faster than an array

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = (
    ("Sec-WebSocket-Version", rb"13", "13"),
    (
        "Sec-WebSocket-Protocol",
        rb"(?:[ \t]*(?:%b[ \t]*)?,)*[ \t]*(?:%b)?" % (_NAME, _NAME),
        "names; percent-encode a key",
    ),
    ("Sec-WebSocket-Key", rb"[A-Za-z0-9+/]{22}==", "16 bytes in base64"),
)
"""Header fields of a handshake, their valid values, and those values in words; the key is the last."""


def accept_key(headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """Return the field Sec-WebSocket-Accept of the response to a handshake; raise ValueError if a field is invalid."""
    value = b""
    for name, valid, expected in _FIELDS:
        value = b",".join(value.strip() for field, value in headers if field == name.lower().encode())
        if re.fullmatch(valid, value) is None:  # the error does not have the value, which may contain an API key
            raise ValueError(f"invalid {name} header; expected {expected}")
    return b64encode(sha1(value + _GUID, usedforsecurity=False).digest())


class FrameReader:
    """Reader of the frames of a client, for messages of at most `max_size` bytes.

    Attributes
    ----------
    message
        The content so far of a message that is not complete.
    """

    __slots__ = ("_fin", "_kind", "_left", "_mask", "_max_size", "message")

    def __init__(self, max_size: int) -> None:
        self.message = bytearray()
        self._max_size = max_size
        self._kind: int = Opcode.CONT  # the opcode of the message that is not complete
        self._fin = True  # whether its current frame is the last
        self._left = 0  # payload bytes of that frame that were not read
        self._mask = b""

    def read(self, data: bytes, at: int) -> tuple[int, int, bytes | bytearray | None]:
        """Read a frame, or a part of its payload, at a place in the received bytes.

        Return the place behind it, and opcode and content of a complete message or control frame; the content is None
        without one. Raise ProtocolError, or OverflowError for a message that is too long.
        """
        if not self._left:
            if len(data) - at < 2:
                return at, 0, None
            first, second = data[at], data[at + 1]
            opcode, size, start = first & _OPCODE, second & _SIZE, at + 6
            if (
                first not in (_INSIDE if self._kind else _OUTSIDE)
                or not second & _MASKED
                or (opcode >= CONTROL and size > 125)
            ):
                raise ProtocolError(_fault(first, second, opcode))
            if size > 125:
                start += 2 if size == 126 else 8
                size = int.from_bytes(data[at + 2 : start - 4], "big")
            if len(data) < start or (opcode >= CONTROL and len(data) < start + size):
                return at, 0, None
            if opcode < CONTROL and size + len(self.message) > self._max_size:
                raise OverflowError(f"a message has more than {self._max_size} bytes")
            mask, at = data[start - 4 : start], start
            if opcode >= CONTROL or (opcode and first & _FIN and len(data) >= start + size):
                return start + size, opcode, unmasked(data[start : start + size], mask)
            self._kind = opcode or self._kind
            self._fin = bool(first & _FIN)
            self._left, self._mask = size, mask
        piece = data[at : at + self._left]
        self.message += unmasked(piece, self._mask)
        self._left -= len(piece)
        turned = len(piece) % 4
        self._mask = self._mask[turned:] + self._mask[:turned]
        if self._left or not self._fin:
            return at + len(piece), 0, None
        content, self.message = self.message, bytearray()
        kind, self._kind = self._kind, Opcode.CONT
        return at + len(piece), kind, content


def _fault(first: int, second: int, opcode: int) -> str:
    """Return what is invalid in the first two bytes of a frame."""
    faults = {
        "a frame has no mask": not second & _MASKED,
        "reserved bits must be 0": first & _RESERVED,
        "invalid opcode": opcode not in tuple(Opcode),
        "invalid control frame": opcode >= CONTROL,
        "a message begins inside another": opcode,
    }
    return next((fault for fault, found in faults.items() if found), "a continuation without a message")


def unmasked(data: bytes, mask: bytes) -> bytes:
    """Return a payload without its mask."""
    size = len(data)
    if size <= _FEW:
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")
    words = np.frombuffer(data + bytes(-size % 4), np.uint32) ^ np.frombuffer(mask, np.uint32)
    return words.tobytes()[:size]


def head_of(opcode: int, size: int) -> bytes:
    """Return the head of a frame of the server, in front of a payload of some bytes."""
    if size < 126:
        return bytes((_FIN | opcode, size))
    if size < 1 << 16:
        return bytes((_FIN | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((_FIN | opcode, 127)) + size.to_bytes(8, "big")


def close_frame(code: int, reason: str) -> bytes:
    """Return a close frame; its reason is cut to the 123 bytes that it has room for."""
    payload = Close(code, reason.encode()[:123].decode("utf-8", "ignore")).serialize()
    return head_of(Opcode.CLOSE, len(payload)) + payload
