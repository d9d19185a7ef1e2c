"""The stages of an HTTP connection and its limits of size, without I/O.

`TRANSITIONS` is the table that runs. `http_protocol` reports events, and gives each stage its time limit:

===== ======================================= =================================================================
stage                                         time limit
===== ======================================= =================================================================
HEAD  the server waits for a request's head   the header timeout, then 408 if some of the head was received
BUSY  the server is answering the request     none: deadlines and `exchange` bound the time
TAIL  the body continues after the response   `Tuning.linger_s`
IDLE  nothing was received since the response the idle timeout
LAST  the server has sent its last response   `Tuning.linger_s`
===== ======================================= =================================================================

Every received byte counts against one of two limits. Bytes of bodies count against the limit for bodies. All other
bytes of a request (request line, headers, chunk sizes and extensions, trailers, blank lines) share one counter, which
may reach the limit for heads. Trailers are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, auto

MAX_DISCARDED = 1024 * 1024  # bytes to discard after the last response, so that the client has time to read it
CHUNK_FRAMING = 20  # bytes around each chunk that do not count: 16 hexadecimal digits and two line ends


class Stage(IntEnum):  # its hash takes a tenth of that of `Enum`
    """A stage of a connection."""

    HEAD = auto()
    BUSY = auto()
    TAIL = auto()
    IDLE = auto()
    LAST = auto()


class Event(IntEnum):
    """What happens to a connection."""

    BYTES = auto()  # bytes are received
    HEAD_END = auto()  # the head of a request is complete
    BODY_END = auto()  # the body is complete
    RESPONSE = auto()  # the response to a completely received request is complete
    EARLY_RESPONSE = auto()  # the response is complete, and the body is not
    LATE_RESPONSE = auto()  # the response is complete, and a part of the next head has been received
    REFUSAL = auto()  # the server sends its last response


_HEAD, _BUSY, _TAIL, _IDLE, _LAST = Stage

TRANSITIONS: Mapping[Stage, Mapping[Event, Stage]] = {
    _HEAD: {Event.BYTES: _HEAD, Event.HEAD_END: _BUSY, Event.REFUSAL: _LAST},
    _BUSY: {
        Event.BYTES: _BUSY,
        Event.HEAD_END: _BUSY,  # of a request that waits behind the answer to another one
        Event.BODY_END: _BUSY,
        Event.RESPONSE: _IDLE,
        Event.EARLY_RESPONSE: _TAIL,
        Event.LATE_RESPONSE: _HEAD,
        Event.REFUSAL: _LAST,
    },
    _TAIL: {Event.BYTES: _TAIL, Event.BODY_END: _IDLE, Event.REFUSAL: _LAST},
    _IDLE: {Event.BYTES: _HEAD, Event.REFUSAL: _LAST},
    _LAST: dict.fromkeys(Event, _LAST),
}
"""The next stage, by stage and event; a pair that is missing cannot happen."""


class ConnectionState:
    """The stage of one connection, and the sizes of what it receives.

    Attributes
    ----------
    stage
        The stage.
    visit
        Number of stages so far, by which a second visit of a stage differs from the first.
    in_head
        Whether a part of a head has been received.
    pieces
        Number of requests and of pieces of bodies so far.
    """

    __slots__ = (
        *("_after", "_begins_here", "_body_here", "_first", "_framing", "_max_body", "_max_head", "_repeats", "_slice"),
        *("in_head", "pieces", "stage", "visit"),
    )

    def __init__(self, max_head: int, max_body: int) -> None:
        self.stage = _HEAD
        self.visit = 0
        self.in_head = False
        self.pieces = 0
        self._max_head = max_head
        self._max_body = max_body
        self._repeats = False
        self._slice = 0  # bytes of this slice
        self._begins_here = False  # whether a request begins in this slice
        self._first = 0  # bytes of the slice in which the request begins, after that slice
        self._framing = 0  # bytes of the request that are not body, without the slice in which it begins
        self._body_here = 0  # bytes of this slice that are body, or framing that is not counted
        self._after = 0  # bytes received after the response

    def is_last(self) -> bool:
        """Return whether the connection ends: nothing that arrives counts."""
        return self.stage is Stage.LAST

    def advance(self, event: Event) -> None:
        """Go to the next stage; raise KeyError for an event that cannot happen in this one."""
        after = TRANSITIONS[self.stage][event]
        if after is not self.stage:
            self.stage = after
            self.visit += 1
            self._after = 0

    def receive(self, size: int) -> bool:
        """Begin a slice of `size` bytes; return False if it exceeds what is discarded after the last response."""
        if self.stage is _LAST:
            self._after += size
            return self._after <= MAX_DISCARDED
        self._slice, self._begins_here, self._body_here = size, False, 0
        self.advance(Event.BYTES)
        return True

    def begin_request(self) -> None:
        if self._repeats:
            return
        self.pieces += 1
        if self.stage is _IDLE:  # the slice begins with the rest of a body whose response was sent before
            self.advance(Event.BYTES)
        self.in_head = self._begins_here = True
        self._framing = self._first = 0

    def end_head(self) -> None:
        self.in_head = self._repeats = False
        self.advance(Event.HEAD_END)

    def repeat_head(self) -> None:
        """Expect the last head again; its bytes are counted already."""
        self._repeats = True

    def fits_head(self, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a complete head is within the limit."""
        if self._first + self._framing + self._slice <= self._max_head:  # even if all of it were the head
            return True
        return len(url) + sum(len(name) + len(value) + 4 for name, value in headers) <= self._max_head

    def body(self, size: int) -> bool:
        """Count a piece of a body; return False if it exceeds the limit for bodies after the response."""
        self.pieces += 1
        self._body_here += size + CHUNK_FRAMING
        if self.stage is _TAIL:
            self._after += size
        return self.stage is not _TAIL or self._after <= self._max_body

    def end_slice(self) -> bool:
        """Count the bytes of the slice that are not body; return False if they exceed the limit for heads."""
        if self._begins_here:
            self._first = self._slice
            return True
        self._framing = max(self._framing + self._slice - self._body_here, 0)
        return self._framing <= self._max_head
