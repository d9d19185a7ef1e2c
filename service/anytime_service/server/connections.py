"""The connections of one server: their limits of number, time and stored bytes, and parsing in slices.

`Connection` is the common part of the HTTP and the WebSocket protocol, `Connections` the state that all of them share.

A read returns up to 256,000 bytes, and 36,000 frames of one byte would occupy the event loop for 100 ms. So a long read
is parsed slice by slice, in a fair queue of all such connections, and only when the application has consumed the
messages of the last slice. Slices grow while they are fast to parse, like those of large frames, and shrink otherwise.
A connection with slow short reads uses the queue too.
"""

from __future__ import annotations

import asyncio
import resource
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from anytime_service.clock import now_ms
from anytime_service.errors import OverloadedError
from anytime_service.http.responses import path_problem_reply, response
from anytime_service.limits.memory import MemoryBudget
from anytime_service.limits.queues import FairQueue, TimeoutQueue, TokenBucket
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.server.hosting import Host
from anytime_service.server.shedding import LoadShedding
from anytime_service.server.stages import Stage
from anytime_service.server.tls import with_close_timeout
from anytime_service.settings import Settings
from anytime_service.telemetry.context import RequestContext, on_behalf_of

RESERVED = 16  # connections above the limit, which may only request health and metrics; of more, the oldest is closed
MAX_CLOSING = 16  # connections that received their last response and are not closed yet; of more, the oldest is aborted
SIDE_CONNECTIONS = 64  # connections of the separate port for metrics and probes
RESERVED_DESCRIPTORS = 2 * (RESERVED + MAX_CLOSING) + SIDE_CONNECTIONS + 64  # 64 are for files, not connections

SMALLEST_SLICE = 2048
LARGEST_SLICE = 65_536
PING_S = 20.0  # interval of pings: a peer that disappears silently is detected after two of them
QUICK_MS = 0.5  # time in ms to parse a slice and to handle its messages, up to which slices grow


@dataclass(slots=True, eq=False)
class _Backlog:
    """Received bytes that are not parsed yet, `stored` of them, and the `size` of the next slice."""

    size: int
    stored: int = 0
    _pieces: deque[memoryview] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return self.stored > 0

    def add(self, data: bytes | memoryview) -> None:
        self._pieces.append(memoryview(data))
        self.stored += len(data)

    def pieces(self) -> tuple[memoryview, ...]:
        return tuple(self._pieces)

    def next(self) -> memoryview:
        piece = self._pieces.popleft()
        if len(piece) > self.size:
            self._pieces.appendleft(piece[self.size :])
            piece = piece[: self.size]
        self.stored -= len(piece)
        return piece

    def learn(self, *, quick: bool) -> None:
        """Double the size of slices after a quick one, halve it after a slow one."""
        self.size = min(self.size * 2, LARGEST_SLICE) if quick else max(self.size // 2, SMALLEST_SLICE)


class Connection(asyncio.Protocol, ABC):
    """Common part of the two protocols; `budget` counts its received bytes.

    Attributes
    ----------
    upgraded
        Whether another protocol now uses the transport.
    write_paused
        Whether the client does not read what was sent.
    server, client, scheme
        As in an ASGI scope.
    """

    def __init__(self, shared: Connections, host: Host) -> None:
        self.shared = shared
        self.host = host
        self.loop = host.loop
        self.budget = shared.memory
        self.upgraded = False
        self.write_paused = False
        self.transport: asyncio.Transport = cast(Any, None)
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme = "http"
        self._writable = asyncio.Event()
        self._unsent = shared.memory, 0  # the budget that counts the unsent bytes of a client that does not read
        self._backlog = _Backlog(self.shared.tuning.first_slice)
        self._unread: deque[Any] = deque()  # parsed messages that wait for the application
        self._bucket = TokenBucket(shared.settings.max_message_rate)
        self._slow = False
        self._turn_queued = False
        self._rate_limited = False

    def connection_made(self, transport: Any) -> None:
        self.host.state.connections.add(self)
        self.transport = with_close_timeout(transport, self.loop)
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if isinstance(server, tuple):
            self.server = str(server[0]), int(server[1])
        elif server:  # the path of a Unix socket
            self.server = (server if isinstance(server, str) else server.decode("utf-8", "replace")), None
        self.client = (str(client[0]), int(client[1])) if isinstance(client, tuple) else None
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, after those and the messages before them."""
        backlog = self._backlog
        if self._unread or backlog.stored or self._slow or self._rate_limited or len(data) > backlog.size:
            self.store(data)
        else:
            self._parse_slice(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.host.state.connections.discard(self)
        self._clear_backlog()
        self.shared.closed(self)
        self._writable.set()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, and count the bytes that are unsent."""
        budget, size = self.budget_of_unsent(), self.transport.get_write_buffer_size()
        budget.add(size)
        self._unsent = budget, size
        self.shared.writes.begin(self)
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.end_stall()
        self.write_paused = False
        self._writable.set()

    async def drain(self, size: int = 0) -> None:
        """Wait until the client reads, or disconnects; meanwhile `size` bytes to send count as stored."""
        self.budget.add(size)
        try:
            await self._writable.wait()
        finally:
            self.budget.add(-size)

    def store(self, data: bytes | memoryview) -> None:
        """Add received bytes to those that are not parsed yet."""
        # Counted without a check: the bytes are in memory already, and no more are read before these are parsed.
        self.budget.add(len(data))
        self._backlog.add(data)
        self.update_reading()

    def end_stall(self) -> None:
        """Stop the timeout of a client that reads again or has disconnected. Idempotent."""
        self.shared.writes.end(self)
        budget, size = self._unsent
        budget.add(-size)
        self._unsent = self.shared.memory, 0

    def abort(self) -> None:
        """Close without a closing handshake, which would wait for a client that does not read."""
        self.transport.abort()

    @abstractmethod
    def parse(self, data: Any) -> int:
        """Parse bytes, and return the number of messages in them."""

    @abstractmethod
    def is_free(self) -> bool:
        """Return whether all parsed messages have been consumed."""

    @abstractmethod
    def update_reading(self) -> None:
        """Read from the transport, or pause until what was received has been consumed."""

    def budget_of_unsent(self) -> MemoryBudget:
        """Return the memory budget that counts the bytes that the client does not read."""
        return self.budget

    def timed_out(self) -> None:
        """Close: something that the client owes did not arrive in time."""
        self.abort()

    @abstractmethod
    def refuse(self, error: Exception) -> None:
        """Send the error as the last response, and close."""

    def _clear_backlog(self) -> None:
        self.budget.add(-self._backlog.stored)
        self._backlog = _Backlog(self.shared.tuning.first_slice)

    def _queue_turn(self) -> None:
        if not self._turn_queued:
            self._turn_queued = True
            self.shared.fair_queue.submit(self._turn)

    def _turn(self) -> None:
        """Parse a slice, if the messages of the last one have been consumed."""
        self._turn_queued = False
        if self.transport.is_closing() or self.upgraded:
            self._clear_backlog()
            return
        if self._backlog and not self._rate_limited and self.is_free():
            piece = self._backlog.next()
            self.budget.add(-len(piece))
            self._parse_slice(piece)
            self._backlog.learn(quick=not self._slow)
        self.update_reading()

    def _parse_slice(self, data: Any) -> None:
        """Parse bytes, and pause reading if they contain more messages than the rate permits."""
        begun = now_ms()
        count = self.parse(data)
        now = now_ms()
        self._slow = now - begun > QUICK_MS
        wait_ms = self._bucket.spend(count, now)
        if wait_ms and not self._rate_limited:
            self._rate_limited = True
            self.loop.call_later(wait_ms / 1000.0, self._end_rate_limit)
            self.update_reading()

    def _end_rate_limit(self) -> None:
        self._rate_limited = False
        if not self.transport.is_closing():
            self.update_reading()


class Connections:
    """The connections of a server and their limits; without `shedding`, every prediction is admitted.

    `timeouts` are those of the stages, except for the last one: `closing` have received their last response. The
    clients of `writes` do not read; `pings` are WebSockets between two pings. `websockets` is whether there are any.
    """

    def __init__(
        self,
        settings: Settings,
        memory: MemoryBudget,
        shedding: LoadShedding | None = None,
        tuning: Tuning = TUNING,
        *,
        websockets: bool = False,
    ) -> None:
        self.settings = settings
        self.memory = memory
        self.tuning = tuning
        self.shedding = shedding
        self.fair_queue = FairQueue() if shedding is None else shedding.service.fair_queue
        self.websockets = websockets
        self.timeouts: dict[Stage, TimeoutQueue[Connection]] = {
            Stage.HEAD: TimeoutQueue(settings.header_timeout_s, lambda each: each.timed_out()),
            Stage.TAIL: TimeoutQueue(tuning.linger_s, lambda each: each.abort()),
            Stage.IDLE: TimeoutQueue(settings.idle_timeout_s, lambda each: each.transport.close()),
        }
        self.closing: TimeoutQueue[Connection] = TimeoutQueue(tuning.linger_s, lambda each: each.abort())
        self.writes: TimeoutQueue[Connection] = TimeoutQueue(settings.idle_timeout_s, lambda each: each.abort())
        self.pings: TimeoutQueue[Connection] = TimeoutQueue(PING_S, lambda each: each.timed_out())
        self._excess: dict[Connection, None] = {}
        self._context = None if shedding is None else RequestContext("", (), shedding.service.metrics.errors)

    def opened(self, connection: Connection, every: Collection[object]) -> bool:
        """Register a new connection, one of `every`, and return whether it may send any request."""
        if self._served(every) <= self.settings.max_connections:
            return True
        self._excess[connection] = None
        if len(self._excess) > RESERVED:
            oldest = next(iter(self._excess))
            self.closed(oldest)
            oldest.refuse(self.limit_error())
        return False

    def accepts_now(self, connection: Connection, every: Collection[object]) -> bool:
        """Return whether a connection above the limit may now send any request."""
        if self._served(every) >= self.settings.max_connections:
            return False
        self._excess.pop(connection, None)
        return True

    def begin_closing(self, connection: Connection) -> None:
        self.closing.begin(connection)
        if len(self.closing) > MAX_CLOSING:
            self.closing.first().abort()

    def closed(self, connection: Connection) -> None:
        self._excess.pop(connection, None)
        connection.end_stall()
        for waiting in (*self.timeouts.values(), self.closing, self.pings):
            waiting.end(connection)

    def refusal(self, error: Exception, default: Iterable[tuple[bytes, bytes]], url: bytes = b"") -> bytes:
        """Return the last response of a connection, outside a request for `url`; its error is counted too."""
        path = url.partition(b"?")[0].decode("latin-1")
        with on_behalf_of(self._context):
            return response(path_problem_reply(error, path)._replace(close=True), default)

    def limit_error(self) -> OverloadedError:
        """Return the error for a connection above the limit, and count it."""
        if self.shedding is not None:
            self.shedding.service.metrics.shed.labels("refused", "connections").inc()
        limit = self.settings.max_connections
        return OverloadedError(f"there are {limit} connections, the limit; retry in a second, or use another replica")

    def _served(self, every: Collection[object]) -> int:
        return len(every) - len(self._excess) - len(self.closing)


def release_head(headers: list[tuple[bytes, bytes]]) -> None:
    """Remove the headers of a request that was answered, or is a WebSocket now; spans need the caller's."""
    headers[:] = [header for header in headers if header[0] == b"traceparent"][:2]


def raise_file_limit(connections: int) -> int:
    """Raise the process's limit of open files as far as allowed, and return how many connections it permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    return max(soft - RESERVED_DESCRIPTORS, 1)
