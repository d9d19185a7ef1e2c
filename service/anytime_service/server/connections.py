"""The connections of one server, their limits of number, time and stored bytes, and load shedding.

A connection reads one request at a time: it handles what it received, answers, and goes on. `Connection` is the common
part of the HTTP and the WebSocket protocol; uvicorn makes one for each client by `Config(http=CLASS, ws=CLASS)`.

- A read brings at most `READ` bytes, into a buffer that all connections share. `proceed` handles them piece by piece
  (`step`: a head, a part of a body, a frame) for a slice of this turn of the loop. If more is left, or the read was
  full and the socket may have more, the transport is paused and the connection waits in the fair queue.
- A connection whose next request waits for the answer before it, or whose messages wait for the application, goes on
  reading until `READ` bytes wait, or more than a head may have: so it notices when its client closes. All else stays
  with the kernel, and the client.
- A connection is paused, too, while it is above its rate of messages. Where its stored bytes do not fit into the memory
  limit, its class decides.
- Time limits are queues: the first head, each further one, the rest of a body after its response, idle connections,
  pings, closing handshakes, the last response. A connection waits in one of them at a time (`wait_in`), and also in
  that of clients that do not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import termios
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from anytime.errors import AnytimeError
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import OverloadedError
from anytime_service.http.auth import identified
from anytime_service.http.exchange import ADMITTED, STORE_REPLY, Reply, start
from anytime_service.http.responses import problem_reply, response
from anytime_service.keys import KEY, KeyRing
from anytime_service.limits.memory import Account
from anytime_service.limits.table import BASE_RATE_BYTES, BASE_RATES, WAITING
from anytime_service.limits.turns import AT_ONCE, TimeoutQueue, TTLCache, slice_end
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import RouteSpec
from anytime_service.settings import Settings
from anytime_service.telemetry.context import RequestContext, on_behalf_of

RESERVED = 16  # connections above the limit, which may only request health and metrics; of more, the oldest is closed
MAX_CLOSING = 16  # connections that received their last response and are not closed yet; of more, the oldest is aborted
SIDE_CONNECTIONS = 64  # connections of the separate port for metrics and probes
RESERVED_DESCRIPTORS = 2 * (RESERVED + MAX_CLOSING) + SIDE_CONNECTIONS + 96  # 96 are for files, and sockets that listen

READ = int(WAITING)
LARGE = 65_536  # bytes of a body or message that is written without a copy
PING_S = 20.0  # interval of pings: a peer that disappears silently is detected after two of them
HANDSHAKE_S = 10.0  # time for the client's part of the closing handshake of a WebSocket
CLOSE_TIMEOUT_S = 1.0
"""Time for a client to close a TLS connection after all data are sent: the event loop alone waits 30 s, and decrypts
and drops whatever the client sends meanwhile."""
MAX_CLOSE_WAITS = 30  # number of close timeouts that may pass while data are still being sent

BURST_S = 0.1  # size of the bucket, in seconds of the rate: this many messages may arrive in one burst
MIN_BURST = 100.0  # smallest size of the bucket, in messages, however low the rate is

BASE_RATES_MS = 60_000.0  # age at which a stored base rate is removed

_RELEVANT_HEADERS = frozenset(
    b"accept content-encoding content-type grpc-timeout host origin request-timeout-ms".split()
)
"""Headers on which the response with a base rate may depend, as it does on the key."""

_NOBODY = asyncio.BufferedProtocol()


class TokenBucket:
    """The token bucket of one connection, for `rate` messages per second; 0 means no limit."""

    __slots__ = ("_at_ms", "_capacity", "_rate_ms", "_tokens")

    def __init__(self, rate: float) -> None:
        self._rate_ms = rate / 1000.0
        self._capacity = self._tokens = max(rate * BURST_S, MIN_BURST)
        self._at_ms = 0.0

    def spend(self, count: int, now_ms: float) -> float:
        """Remove `count` tokens for received messages; return how many milliseconds to wait before accepting more."""
        if self._rate_ms == 0.0:
            return 0.0
        self._tokens = min(self._tokens + (now_ms - self._at_ms) * self._rate_ms, self._capacity) - count
        self._at_ms = now_ms
        return 0.0 if self._tokens >= 0.0 else -self._tokens / self._rate_ms


class Connection(asyncio.BufferedProtocol, ABC):
    """Common part of the two protocols, with what uvicorn passes to both; `budget` counts the stored bytes.

    uvicorn's server has each connection in `server_state.connections` while it is open, and the tasks that answer in
    `server_state.tasks`: at the end it calls `shutdown` of each connection, and waits until both are empty. It counts
    responses in `total_requests`, and updates `default_headers` (the date) once a second by a new list.

    Attributes
    ----------
    received : bytes
        What was received and is not handled, from the place `at`.
    partial : int
        Bytes of a message that is not complete, or waits for its turn.
    write_paused : bool
        Whether the client does not read what was sent.
    scope : dict[str, Any]
        The part of an ASGI scope that all requests share.
    """

    def __init__(
        self,
        shared: Connections,
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.shared = shared
        self.config = config
        self.state: Any = server_state  # its annotations name the protocol classes of uvicorn
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self._origin = copy_context()  # not that of the request before, whose answer may begin the next one
        self.budget = shared.service.memory
        self.transport: asyncio.Transport = cast(Any, None)
        self.scope: dict[str, Any] = {}
        self.received, self.at = b"", 0
        self._buffer = shared.buffer
        self.partial = 0
        self.write_paused = False
        self._writable = asyncio.Event()
        self._unsent = self.budget, 0  # the account that counts the unsent bytes of a client that does not read
        self._counted = 0  # bytes of this connection that `budget` counts
        self._bucket = TokenBucket(shared.settings.max_message_rate)
        self._proceeding = self._waiting = self._paused = self._full = False
        self.ended = False  # whether the client sends no more
        self._timeout: TimeoutQueue[Connection] | None = None
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.state.connections.add(self)
        self.transport = transport
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "https" if is_ssl(transport) else "http",
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "root_path": self.config.root_path,
            "state": self.app_state,
        }

    def get_buffer(self, _sizehint: int) -> memoryview:
        self._buffer = self.shared.buffer[: max(self.shared.most - len(self.received), 1)]
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        self.received = self.received + data if self.received else data
        self._full = size == len(self._buffer)  # libuv reads up to 32 times in a turn while reads are full
        self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.state.connections.discard(self)
        self.received = b""
        self.budget.add(-self._counted)
        self.partial = self._counted = 0
        self.wait_in(None)
        self.end_stall()
        self._writable.set()
        if self._closing is not None:
            self._closing.cancel()
        if self.scope["scheme"] == "https":
            self.transport.set_protocol(_NOBODY)  # uvloop's TLS keeps methods of a protocol for good

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
        if self.transport.is_closing():
            self.shared.writes.begin(self)
        self.write_paused = False
        self._writable.set()
        self.proceed()

    async def drain(self, size: int = 0) -> None:
        """Wait until the client reads, or disconnects; meanwhile `size` bytes to send count as stored."""
        self.budget.add(size)
        try:
            await self._writable.wait()
        finally:
            self.budget.add(-size)

    def end_stall(self) -> None:
        """Stop the timeout of a client that reads again or has disconnected. Idempotent."""
        self.shared.writes.end(self)
        budget, size = self._unsent
        budget.add(-size)
        self._unsent = self.budget, 0

    def run(self, answering: Coroutine[Any, Any, None], *, direct: bool = False) -> None:
        """Run a coroutine that answers a request in a task; if `direct`, from its first wait on."""
        here = self._origin.copy()
        task = start(answering, here) if direct else self.loop.create_task(answering, context=here)
        if task is not None:
            self.state.tasks.add(task)
            task.add_done_callback(self.state.tasks.discard)

    def transmit(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self, _waits: int = 0) -> None:
        """Close when all data are sent; give a client of TLS a limited time to close, too. Idempotent."""
        if _waits == 0:
            if not self.transport.is_closing():
                self.transport.close()
            if self.transport.get_write_buffer_size():
                self.shared.writes.begin(self)  # the loop would wait for ever for a client that does not read
        elif _waits > MAX_CLOSE_WAITS or not self._sends():
            self.transport.abort()
            return
        if self.scope["scheme"] == "https" and (_waits or self._closing is None):
            self._closing = self.loop.call_later(CLOSE_TIMEOUT_S, self.close, _waits + 1)

    def _sends(self) -> bool:
        """Return whether data are unsent: those of TLS may lie in the transport below, and the system."""
        if self.transport.get_write_buffer_size():
            return True
        sock = self.transport.get_extra_info("socket")
        try:
            return sock is not None and any(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        except (OSError, ValueError):  # the socket is closed, or the system does not say
            return False

    def abort(self) -> None:
        """Close without a closing handshake, which would wait for a client that does not read."""
        self.transport.abort()

    # Reading.

    @abstractmethod
    def step(self) -> int:
        """Handle the next piece of what was received; return the number of messages in it, 0 if it must wait."""

    def proceed(self) -> None:
        """Handle what was received, for a slice of this turn; the rest waits in the fair queue."""
        if self._proceeding or self._waiting:
            return
        self._proceeding = True
        until, count, more = slice_end(), 0, not self.transport.is_closing()
        try:
            while more:
                handled = self.step()
                count += handled
                more = handled > 0 and len(self.received) > self.at and not self.transport.is_closing()
                if more and now_ms() > until:
                    break
        finally:
            self._proceeding = False
        if self.transport.is_closing():
            self.received, self.at, more, self._full = b"", 0, False, False
        if self.at:
            self.received, self.at = self.received[self.at :], 0
        stored = len(self.received) + self.partial - self._counted
        if stored:
            self._counted += stored
            try:
                if stored > 0:
                    self.budget.check(stored)
            except OverloadedError as error:
                self.does_not_fit(error)
            self.budget.add(stored)
        wait_ms = self._bucket.spend(count, now_ms()) if count else 0.0
        if wait_ms or more or self._full:
            self.wait(wait_ms)
        self.update_reading()

    def store(self, size: int) -> None:
        """Count a complete message that waits for its turn, or 0 for none, without a check."""
        more = size - self.partial
        self.partial += more
        self._counted += more
        self.budget.add(more)

    def wait(self, wait_ms: float = 0.0) -> None:
        """Handle nothing for some time, or until a turn in the fair queue of connections that have more to handle."""
        if not self._waiting:
            self._waiting = True
            if wait_ms:
                self.loop.call_later(wait_ms / 1000.0, self._go_on)
            else:
                self.shared.service.turns.work.submit(self._go_on)
            self.update_reading()

    def update_reading(self) -> None:
        """Read from the transport, or pause until what was received has been handled."""
        pause = self._waiting or len(self.received) >= self.shared.most
        if pause != self._paused and not (self.ended or self.transport.is_closing()):
            self._paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _go_on(self) -> None:
        self._waiting = self._full = False
        self.proceed()

    def wait_in(self, timeout: TimeoutQueue[Connection] | None) -> None:
        """Wait in the queue of a timeout, and not in the one before."""
        if timeout is not self._timeout:
            if self._timeout is not None:
                self._timeout.end(self)
            self._timeout = timeout
            if timeout is not None:
                timeout.begin(self)

    @abstractmethod
    def does_not_fit(self, error: OverloadedError) -> None:
        """Handle that the received bytes exceed the memory limit."""

    def budget_of_unsent(self) -> Account:
        """Return the account that counts the bytes that the client does not read."""
        return self.budget

    @abstractmethod
    def timed_out(self) -> None:
        """Handle that something that the client owes did not arrive in time."""

    @abstractmethod
    def refuse(self, error: Exception) -> None:
        """Send the error as the last response, and close."""


class LoadShedding:
    """Decisions and responses for predictions that the server does not begin: it refuses them, or sends the base rate.

    With twice as many requests as the server can answer, refusing the second half must not use the time that answering
    the first half needs. Therefore the server decides when it has read the head of a request, before it creates a task
    and reads the body, and sends a stored response, for a small part of the cost of an answer. Requests wait nowhere
    before that decision: what waits in the server's queues counts in it.
    """

    def __init__(self, service: PredictionService, keys: KeyRing) -> None:
        self.service = service
        self.keys = keys
        self._priors: TTLCache[Reply] = TTLCache(int(BASE_RATES), BASE_RATES_MS)
        self._priors_for: tuple[ModelRegistry, tuple[object, ...]] | None = None
        self._refusals: dict[int, bytes] = {}
        self._default: list[tuple[bytes, bytes]] | None = None

    def admits(self, scope: dict[str, Any], length: int) -> bool | None:
        """Return whether the prediction of a request begins, whose body has a length; a long one waits for its turn.

        Return None without a valid key: the authentication middleware refuses the request.
        """
        if self.keys.needed:
            try:
                identified(self.keys, scope)
            except AnytimeError:
                return None
        service = self.service
        is_late = length > AT_ONCE and service.turns.long_ms > service.settings.max_lateness_ms
        admitted = scope["state"][ADMITTED] = service.admission.admits(now_ms()) and not is_late
        return admitted

    def reply(self, scope: dict[str, Any], route: RouteSpec, default: list[tuple[bytes, bytes]]) -> bytes | None:
        """Return the response to a request whose prediction is not admitted; None if its endpoint must answer.

        The same list `default` as before contains the same headers.
        """
        if route.shed == "endpoint":  # the body may request the base rate
            return None
        if b"overload=prior" not in scope["query_string"]:
            return self._refusal(default)
        return self._prior(scope, default) if route.shed == "stored" else None

    def _refusal(self, default: list[tuple[bytes, bytes]]) -> bytes:
        self.service.shed("refused")
        self.service.metrics.overloaded.inc()
        if default is not self._default:
            self._default = default
            self._refusals.clear()
        seconds = self.service.admission.retry_after_s()
        content = self._refusals.get(seconds)
        if content is None:
            with on_behalf_of(None):  # it is counted above
                content = response(problem_reply(self.service.overloaded(seconds)), default)
            self._refusals[seconds] = content
        return content

    def _prior(self, scope: dict[str, Any], default: list[tuple[bytes, bytes]]) -> bytes | None:
        """Return the stored response with the base rate; without one return None, and store the next answer."""
        registry, keys = self.service.registry, self.keys.current
        if self._priors_for is None or self._priors_for[0] is not registry or self._priors_for[1] is not keys:
            self._priors_for = registry, keys
            self._priors.clear()
        relevant = (part for header in scope["headers"] if header[0] in _RELEVANT_HEADERS for part in header)
        request = (scope["raw_path"], scope["query_string"], getattr(scope.get(KEY), "digest", b""), *relevant)
        reply = self._priors.find(request)
        if reply is None:
            scope["state"][STORE_REPLY] = partial(self._store, request)
            return None
        self.service.shed("prior")
        return response(reply, default)

    def _store(self, request: tuple[bytes, ...], reply: Reply) -> None:
        """Store a base rate, unless it is large: those of many rows differ in their options, and seldom repeat."""
        if sum(map(len, request)) + len(reply.content) <= int(BASE_RATE_BYTES):
            self._priors.add(request, reply, now_ms())


class Connections:
    """The connections of a server and their limits; without `shedding`, every prediction is admitted.

    `heads`, `tails` and `idle` wait for a head, the rest of a body after its response, or anything; `closing` have
    received their last response, and `handshakes` are WebSockets that wait for the client's part of the closing
    handshake. The clients of `writes` do not read; `pings` are WebSockets between two pings. `excess` are connections
    above the limit, which may request health and metrics.
    """

    def __init__(self, settings: Settings, service: PredictionService, shedding: LoadShedding | None = None) -> None:
        self.settings = settings
        self.service = service
        self.shedding = shedding
        linger_s = service.tuning.linger_s
        self.buffer = memoryview(bytearray(READ))
        self.most = max(READ, settings.max_header_bytes + 1)  # bytes that wait on a connection; one more than a head
        self.heads: TimeoutQueue[Connection] = TimeoutQueue(settings.header_timeout_s, lambda each: each.timed_out())
        self.tails: TimeoutQueue[Connection] = TimeoutQueue(linger_s, lambda each: each.close())
        self.idle: TimeoutQueue[Connection] = TimeoutQueue(settings.idle_timeout_s, lambda each: each.close())
        self.closing: TimeoutQueue[Connection] = TimeoutQueue(linger_s, lambda each: each.abort(), MAX_CLOSING)
        self.writes: TimeoutQueue[Connection] = TimeoutQueue(settings.idle_timeout_s, lambda each: each.abort())
        self.pings: TimeoutQueue[Connection] = TimeoutQueue(PING_S, lambda each: each.timed_out())
        self.handshakes: TimeoutQueue[Connection] = TimeoutQueue(HANDSHAKE_S, lambda each: each.close())
        self.excess: dict[Connection, None] = {}
        self._context = RequestContext("", (), service.metrics.errors)

    def opened(self, connection: Connection) -> None:
        """Register a new connection."""
        if self._served(connection.state.connections) > self.settings.max_connections:
            self.excess[connection] = None
            if len(self.excess) > RESERVED:
                oldest = next(iter(self.excess))
                del self.excess[oldest]
                oldest.refuse(self.limit_error())

    def accepts_now(self, connection: Connection) -> bool:
        """Return whether a connection above the limit may now send any request."""
        if self._served(connection.state.connections) >= self.settings.max_connections:
            return False
        del self.excess[connection]
        return True

    def refusal(
        self, error: Exception, default: Iterable[tuple[bytes, bytes]], url: bytes = b"", method: str = ""
    ) -> bytes:
        """Return the last response of a connection, outside a request for `url`; its error is counted too."""
        path = url.partition(b"?")[0].decode("latin-1")
        with on_behalf_of(self._context):
            reply = problem_reply(error, path)._replace(close=True)
        content = response(reply, default)
        return content.removesuffix(reply.content) if method == "HEAD" else content

    def limit_error(self) -> OverloadedError:
        """Return the error for a connection above the limit, and count it."""
        self.service.metrics.shed.labels("refused", "connections").inc()
        limit = self.settings.max_connections
        return OverloadedError(f"there are {limit} connections, the limit; retry in a second, or use another replica")

    def _served(self, every: Collection[object]) -> int:
        return len(every) - len(self.excess) - len(self.closing)


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
