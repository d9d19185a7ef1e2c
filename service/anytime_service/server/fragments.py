"""Long WebSocket frames as fragments, so that each is unmasked as its bytes arrive and not all when the last does.

A message of 8 MB in one frame held the loop for 10 ms more when it was complete: to copy it out of the stream, to
unmask it and to copy it again. Any sender may fragment a message (RFC 6455, 5.4), so the receiver sees the same.
"""

from __future__ import annotations

from collections.abc import Iterator

PIECE, LEAST = 32_768, 126
"""Payload bytes of a fragment, a multiple of the 4 bytes of the mask, and least number of the last one."""

_FIN, _OPCODE, _CONTROL, _MASKED = 0x80, 0x0F, 0x08, 0x80
_SHORT_HEAD, _HEAD = 8, 14
"""Bytes before the payload, with a length of 16 and of 64 bits."""


class Fragments:
    """Splits the masked frames of a client that are longer than a piece, and of at most `max_size` bytes.

    Everything else passes unchanged: short frames, and those that are refused for their size or their form.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self.added = 0  # fragments made so far, less the frames that they replace
        self._pass = 0  # payload bytes to come of a frame that passes unchanged
        self._left = 0  # payload bytes to come of a long frame
        self._first, self._mask = 0, b""  # the first byte of its next fragment, and its mask
        self._held = b""  # an incomplete head or piece

    @property
    def held(self) -> int:
        """Return the number of received bytes that are not passed yet."""
        return len(self._held)

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes of a stream, received in any pieces, with long frames in fragments."""
        data, self._held = self._held + data, b""
        begin, at, end = 0, self._pass, len(data)  # what passes unchanged so far, and the next head
        while at < end:
            if self._left:
                size = self._left if self._left <= PIECE + LEAST else PIECE
                if end - at < size:
                    break
                yield self._fragment(data[at : at + size])
                begin = at = at + size
                continue
            second = data[at + 1] & ~_MASKED if end - at > 1 else 127
            if second < 126:
                at += 6 + second
                continue
            head = _SHORT_HEAD if second == 126 else _HEAD
            if end - at < head:
                break
            length = int.from_bytes(data[at + 2 : at + head - 4], "big")
            if PIECE + LEAST < length <= self._max_size and data[at + 1] & _MASKED and not data[at] & _CONTROL:
                if at > begin:
                    yield data[begin:at]
                begin = at + head
                self._left, self._first, self._mask = length, data[at], data[begin - 4 : begin]
                length = 0
            at += head + length
        if begin < min(at, end):
            yield data[begin:at]
        self._held, self._pass = data[at:], max(at - end, 0)

    def _fragment(self, payload: bytes) -> bytes:
        self._left -= len(payload)
        first = self._first & ~_FIN if self._left else self._first
        self.added += bool(self._left)
        self._first &= ~_OPCODE  # that of a continuation is 0
        return b"%c\xfe%b%b%b" % (first, len(payload).to_bytes(2, "big"), self._mask, payload)
