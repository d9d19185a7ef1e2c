"""Transport of the client: address of the server, HTTP requests, WebSocket link and reconnection.

`Control` sends the HTTP requests. `Link` is one open WebSocket that many predictions share, each with its own id. Its
memory is bounded: it stores the last update of each prediction, a limited number of abandoned predictions, and a
limited number of unsent bytes. A lost link stays lost; `Connection` creates a new one at once, in the background.

Callers that need a link during an attempt to connect share the attempt. If it is refused, all of them receive the
error. Pauses between attempts double from 50 ms to 1 s and vary randomly by half, so that not all clients reconnect at
the same time when a server restarts. A caller whose deadline ends after the pause waits for the next attempt; any other
caller receives the last error.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import random
import re
import time
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from ssl import SSLContext
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from anytime.inference.deadline import early_ms
from anytime.inference.prediction import Answer
from anytime_service.client.addresses import NEXT_AFTER_S, connected
from anytime_service.client.environment import PORTS, certificates, proxy_of, without_password
from anytime_service.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
)
from anytime_service.client.in_process import CLOSE_TIMEOUT_S, ASGIApp, InProcessSocket
from anytime_service.client.messages import Encoded, Reply, decode_problem, decode_reply, parsed, seconds_of
from anytime_service.schemas.catalogue import ModelSummary
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.options import PredictionOptions
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.schemas.stream import SUBPROTOCOL, BeginFrame, EndFrame, PackedGroupFrame
from anytime_service.urls import server_url

MAX_REPLY_BYTES = 64 * 1024 * 1024  # largest accepted reply: twice the size of 10,000 rows of 100 classes

Result = TypeVar("Result")

_SECURE = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True)
class Endpoint:
    """A server, and how to connect to it.

    `url` is its address for messages, `http` the base URL of its routes without a trailing slash, and `stream` the URL
    of its WebSocket. `uds` is the path of a Unix socket that replaces the host in the URLs. `headers` contain the key.
    `app` is an ASGI application that answers in this process; None for a server.
    """

    url: str
    http: str
    stream: str
    uds: str | None
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float
    ssl: SSLContext | None
    app: ASGIApp | None = None

    @cached_property
    def proxy(self) -> str | None:
        """URL of the proxy, see `environment`; raises ClientError."""
        return None if self.uds is not None or self.app is not None else proxy_of(self.http)

    @cached_property
    def context(self) -> SSLContext | None:
        """Context for TLS, the caller's or that of the environment; None without TLS. Raises ClientError."""
        return self.ssl or (certificates() if self.http.startswith("https") else None)

    @classmethod
    def of(
        cls, url: str, api_key: str | None, timeout_s: float, ssl: SSLContext | None, app: ASGIApp | None = None
    ) -> Endpoint:
        """Parse `http://host:port`, `https://...`, with or without a path, or `unix:/path/of/socket`.

        Raise ClientError if the URL has another form, the key has invalid characters, or an option is invalid.
        """
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s!r}; expected a number of seconds > 0")
        if api_key is not None and not re.fullmatch("[!-~]+", api_key):
            raise ClientError(
                "the API key has characters that are invalid in a header; expected printable ASCII, no spaces"
            )
        if app is not None and ssl is not None:
            raise ClientError("an application in this process needs no ssl; omit ssl, or transport")
        uds, authorization = None, None if api_key is None else f"Bearer {api_key}"
        if url.startswith("unix:") and len(url) > len("unix:"):
            uds = url.removeprefix("unix:")
            stream, base = "ws", "localhost"  # the host appears only in the Host header
        else:
            parts = server_url(url, _SECURE)
            shown = without_password(url)
            if parts is None or parts.query or parts.fragment:
                raise ClientError(f"the address of the server is {shown!r}; expected one like http://127.0.0.1:8000")
            if parts.username is not None:
                if api_key is not None:
                    raise ClientError(f"both the address {shown} and api_key have credentials; expected one of them")
                user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                authorization = f"Basic {b64encode(user.encode()).decode()}"
            url, base = shown, parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
            stream = _SECURE[parts.scheme]
        if ssl is not None and stream != "wss":
            raise ClientError(f"the ssl context does not apply to {url}; expected an https:// address")
        headers = {} if authorization is None else {"Authorization": authorization}
        http = f"{stream.replace('ws', 'http')}://{base}"
        return cls(url, http, f"{stream}://{base}/stream", uds, headers, timeout_s, ssl, app)

    def unreachable(self, error: Exception) -> ConnectionLostError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return ConnectionLostError(f"cannot connect to {self.url}: {reason}")

    def redirected(self, path: str, status: int, location: str | None) -> ReplyError | None:
        """Return the error of a response to `path` if it is a redirect: no key is sent to where it leads."""
        if location is None or not 300 <= status < 400:
            return None
        target = urlsplit(urljoin(self.http + path, location))._replace(query="", fragment="").geturl()
        where = without_password(target).removesuffix(path)
        return ReplyError(f"{self.url} redirects to {where} ({status}); expected the address of the server itself")


KEEPALIVE_S = 2.0  # lifetime of idle connections: servers close theirs after 5 s, so reusing an older one could fail


class Control:
    """HTTP client for one server; belongs to one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._http: httpx.AsyncClient | None = None
        self._closed = False

    async def model(self, name: str) -> ModelSummary:
        """Return the description of a model, without the fields that this client does not know."""
        reply = await self.request("GET", f"/models/{quote(name, safe='')}")
        return parsed(reply, partial(ModelSummary.model_validate_json, extra="ignore"))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        form: Form = JSON,
        waits_s: float = 0.0,
        once: bool = False,
    ) -> bytes:
        """Send a request and return the body of its response.

        A reused connection may turn out to be closed. The client then sends the request again, unless `once` is set for
        a request that is not idempotent. `waits_s` is the time that the server may wait before it replies, in addition
        to the timeout. Raise ProblemError, ConnectionLostError or NoAnswerError.
        """
        headers = {} if content is None else {"Content-Type": form.media_type}
        timeout = httpx.Timeout(self._endpoint.timeout_s, read=self._endpoint.timeout_s + waits_s)
        try:
            request = self._client().build_request(
                method, self._endpoint.http + path, params=params, content=content, headers=headers, timeout=timeout
            )
            # The timeout of httpx is that of each read, and an application in this process has none.
            async with asyncio.timeout(2 * self._endpoint.timeout_s + waits_s):
                try:
                    response, body = await self._exchange(request)
                except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                    if once or isinstance(error, httpx.ConnectError):
                        raise
                    response, body = await self._exchange(request)
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.InvalidURL, UnicodeError) as error:
            raise self._endpoint.unreachable(error) from error
        except (httpx.TimeoutException, TimeoutError) as error:
            late = f"{self._endpoint.url} did not reply within {timeout.read:g} s"
            raise NoAnswerError(f"{late} to {method} {path}") from error
        except (httpx.HTTPError, AssertionError) as error:  # the latter of an application that sends no reply
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(f"{method} {path} at {self._endpoint.url} broke: {reason}") from error
        if response.is_success:
            return body
        redirect = self._endpoint.redirected(path, response.status_code, response.headers.get("location"))
        if redirect is not None:
            raise redirect
        retry_after_s = seconds_of(response.headers.get("retry-after", ""))
        if MEDIA_TYPE in response.headers.get("content-type", ""):
            raise decode_problem(body, response.status_code, retry_after_s)
        text = body[:200].decode("utf-8", "replace").strip()
        title = response.reason_phrase or "refused"
        raise ProblemError(response.status_code, title, text or title, retry_after_s=retry_after_s)

    async def close(self) -> None:
        self._closed = True
        if self._http is not None:
            await self._http.aclose()

    async def _exchange(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        response = await self._client().send(request, stream=True)
        content = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_REPLY_BYTES:
                    raise ReplyError(
                        f"the server sent a reply of more than {MAX_REPLY_BYTES} bytes; expected a smaller one"
                    )
        finally:
            await response.aclose()
        return response, bytes(content)

    def _client(self) -> httpx.AsyncClient:
        """Return the HTTP client; create it on first use, since reading the system's certificates takes time."""
        if self._closed:
            raise ClosedError("this client is closed; create a new one")
        if self._http is None:
            endpoint = self._endpoint
            self._http = httpx.AsyncClient(
                headers={"Accept": "application/json", **endpoint.headers},
                verify=endpoint.context or False,
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
                proxy=endpoint.proxy,
                trust_env=False,
                transport=self._transport(),
            )
        return self._http

    def _transport(self) -> httpx.AsyncBaseTransport | None:
        """Return what replaces a connection to a host; None for a host."""
        if self._endpoint.app is not None:
            return httpx.ASGITransport(self._endpoint.app, raise_app_exceptions=False)
        return None if self._endpoint.uds is None else httpx.AsyncHTTPTransport(uds=self._endpoint.uds)


K = 1.2  # ratio of requests sent to requests accepted
FEW = 3.0  # number of refusals below which the client does not throttle
MEMORY_S = 2.0  # time constant of the counts: a request of this age has the weight exp(-1), about one third


class Throttle:
    """Adaptive throttling by decaying counts of recent requests and acceptances, by the clock `now` in seconds.

    A refusal is cheap for the server but not free, so the client rejects the share

        max(0, (requests - K accepts - FEW) / (requests + 1))

    of its requests itself. The server then receives about K times as many as it accepts, enough for the client to
    notice when the overload ends (Beyer, Jones, Petoff and Murphy, *Site Reliability Engineering*, 2016, chapter 21).
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, chance: Callable[[], float] = random.random
    ) -> None:
        self._now, self._chance = now, chance
        self._at = now()
        self._requests = self._accepts = 0.0

    def rejects(self) -> bool:
        self._fade()
        share = (self._requests - K * self._accepts - FEW) / (self._requests + 1.0)
        if share <= 0.0 or self._chance() >= share:
            return False
        self._requests += 1.0
        return True

    def record(self, *, accepted: bool) -> None:
        """Count a prediction that was sent; it is not accepted if the server refused it because of overload."""
        self._fade()
        self._requests += 1.0
        self._accepts += accepted

    def _fade(self) -> None:
        now = self._now()
        decay = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        self._requests *= decay
        self._accepts *= decay


MAX_DELAYS = 64  # number of delays in the margin: few enough that two answers suffice to notice a slower network
SHARE_IN_TIME = 0.98
MAX_MARGIN_MS = 1000.0  # longest recorded delay: with a longer one, no deadline of the usual length is feasible


class NetworkMargin:
    """How much earlier than the caller's deadline the server must answer: a quantile of the most recent delays.

    Delays of the client's own event loop are not part of them, see `LoopDelay`. `anytime.inference.deadline` tracks its
    quantile in small steps; a network may change by much more than one step. The delays are those of answers that a
    deadline interrupted, also of answers that arrived too late.
    """

    def __init__(self) -> None:
        self.ms = 0.0
        self._delays: deque[float] = deque(maxlen=MAX_DELAYS)

    def guess(self, delay_ms: float) -> None:
        """Set the margin from the delay of an immediate answer, until `add` records the first delay."""
        if not self._delays:
            self.ms = min(max(delay_ms, 0.0), MAX_MARGIN_MS)

    def add(self, delay_ms: float) -> None:
        """Record the delay of an answer: its time of arrival minus the deadline sent to the server."""
        self._delays.append(min(max(delay_ms, 0.0), MAX_MARGIN_MS))
        ordered = sorted(self._delays)
        self.ms = ordered[min(int(SHARE_IN_TIME * len(ordered)), len(ordered) - 1)]

    def server_deadline_ms(self, remaining_ms: float) -> float:
        """Return the deadline to send to the server: the remaining time minus the margin, at least half of that time.

        With less than half, extractors could compute only few groups.
        """
        return max(remaining_ms - early_ms(self.ms, remaining_ms), 0.0)


TICK_S = 0.001  # interval at which a loop's own delay is measured around the time of an answer
TIMER_MS = 1.2  # a timer may be this late although the loop is free: some loops wait in whole milliseconds
MAX_TICKS = 64


class LoopDelay:
    """How long an event loop was held up while an answer was sent for and awaited: no delay of the network.

    It measures the first turn after the beginning, and from the time at which the answer is due, in seconds of
    `time.perf_counter`, the delay of a timer that repeats.
    """

    def __init__(self, due: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = time.perf_counter()
        self._ms = 0.0
        self._ticks = 0
        self._due = due
        self._handle: asyncio.Handle = self._loop.call_soon(self._first)

    def ms(self) -> float:
        """Return the delay so far; the loop may read a frame before the timer that is due."""
        return self._ms + self._late()

    def cancel(self) -> None:
        self._handle.cancel()

    def _late(self) -> float:
        late = (time.perf_counter() - self._due) * 1e3
        return late if late > TIMER_MS else 0.0

    def _first(self) -> None:
        self._ms += (time.perf_counter() - self._begun) * 1e3
        self._wait()

    def _tick(self) -> None:
        self._ms += self._late()
        self._ticks += 1
        self._due = time.perf_counter() + TICK_S if self._ticks < MAX_TICKS else math.inf
        if self._ticks < MAX_TICKS:
            self._wait()

    def _wait(self) -> None:
        self._handle = self._loop.call_later(max(self._due - time.perf_counter(), 0.0), self._tick)


MAX_OPEN = 1024  # largest number of open predictions on one link
MAX_ABANDONED = 256  # largest number of abandoned predictions whose answers still update the margin
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # largest number of unsent bytes; the link treats a network with more as broken

_log = logging.getLogger("anytime.client")

Outcome: TypeAlias = Answer | ProblemError | ConnectionLostError  # answer, refusal of a frame, or loss of the link


@dataclass(eq=False)
class Channel:
    """One prediction on a link.

    `deadline_ms` is the deadline sent to the server, if any. `wake` is called with each outcome, in the event loop; it
    is None after the caller has abandoned the prediction. `begun` is in seconds of `time.perf_counter`.
    """

    link: Link
    id: int
    deadline_ms: float | None
    wake: Callable[[Channel, Outcome], None] | None
    begun: float = field(default_factory=time.perf_counter)
    own_delay: LoopDelay | None = None
    update: Answer | None = None
    answer: Answer | None = None

    def send_group(self, group: str, values: Encoded, took_ms: float | None) -> None:
        self.link.send(PackedGroupFrame(self.id, group, values.values, took_ms, values.dtype))

    def end(self) -> None:
        self.link.send(EndFrame(self.id))

    def stop_measuring(self) -> None:
        if self.own_delay is not None:
            self.own_delay.cancel()

    def abandon(self) -> None:
        self.wake = None
        self.link.forget(self)

    def deliver(self, outcome: Outcome) -> None:
        if self.wake is not None:
            self.wake(self, outcome)


class Link:
    """An open WebSocket with its reader and writer tasks; belongs to one event loop.

    It updates `margin` from answers that a deadline interrupted, and calls `on_loss` once.
    """

    def __init__(
        self,
        socket: ClientConnection | InProcessSocket,
        margin: NetworkMargin,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self.lost: ConnectionLostError | None = None
        self.opened = time.perf_counter()
        self._on_loss = on_loss
        self._socket = socket
        self._margin = margin
        self._next = 0
        self._open: dict[int, Channel] = {}
        self._abandoned: OrderedDict[int, Channel] = OrderedDict()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sendable = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        self._ending: asyncio.Task[None] | None = None

    def begin(self, options: PredictionOptions, wake: Callable[[Channel, Outcome], None]) -> Channel:
        """Open a prediction with these options and a new id; raise ClientError if too many are open."""
        if len(self._open) >= MAX_OPEN:
            raise ClientError(f"{MAX_OPEN} predictions are open on this client; wait for some, or use a second client")
        channel = Channel(self, self._next, options.deadline_ms, wake)
        self._next += 1
        if self.lost is None:
            if options.deadline_ms is not None:
                channel.own_delay = LoopDelay(channel.begun + options.deadline_ms / 1e3)
            self._open[channel.id] = channel
            self.send(BeginFrame(id=channel.id, **msgspec.structs.asdict(options)))
        else:
            channel.deliver(self.lost)
        return channel

    def send(self, frame: BeginFrame | PackedGroupFrame[msgspec.Raw] | EndFrame) -> None:
        """Queue a frame for sending; drop it if the link is lost."""
        if self.lost is not None:
            return
        content = MSGPACK.encode(frame)
        if self._unsent and self._unsent_bytes + len(content) > MAX_UNSENT_BYTES:
            self._lose(f"the network is too slow: {self._unsent_bytes} bytes are unsent")
            return
        self._unsent.append(content)
        self._unsent_bytes += len(content)
        self._sendable.set()

    def forget(self, channel: Channel) -> None:
        if self._open.pop(channel.id, None) is None:
            return
        self._abandoned[channel.id] = channel
        while len(self._abandoned) > MAX_ABANDONED:
            _, dropped = self._abandoned.popitem(last=False)
            dropped.stop_measuring()

    async def close(self) -> None:
        """Close the socket and wait until its tasks have ended; a lost link also closes by itself."""
        self._lose("the client was closed")
        if self._ending is not None:
            await self._ending

    async def _end(self) -> None:
        with suppress(Exception):  # a socket that breaks while it closes is closed
            await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                reply = decode_reply(await self._socket.recv())
                if reply is not None:
                    self._handle(reply)
        except ConnectionClosed as error:
            self._lose(_closing(error))
        except ReplyError as error:
            self._lose(str(error))
        except Exception as error:
            _log.exception("reading from the server failed")
            self._lose(f"reading from the server failed: {error!r}")  # callers must not wait for a reader that ended

    async def _write(self) -> None:
        with suppress(ConnectionClosed):  # the reader reports it
            while True:
                await self._sendable.wait()
                while self._unsent:
                    frame = self._unsent.popleft()
                    self._unsent_bytes -= len(frame)
                    await self._socket.send(frame)
                self._sendable.clear()

    def _handle(self, reply: Reply) -> None:
        ours = isinstance(reply.id, int)
        channel = (self._open.get(reply.id) or self._abandoned.get(reply.id)) if ours else None
        if channel is None:
            if isinstance(reply.content, ProblemError) and reply.id is None:
                _log.warning("the server refused a frame: %s", reply.content)
        elif isinstance(reply.content, ProblemError):
            channel.deliver(reply.content)
        elif reply.final:
            self._open.pop(channel.id, None)
            self._abandoned.pop(channel.id, None)
            self._learn(channel, reply.content)
            channel.stop_measuring()
            channel.answer = reply.content
            channel.deliver(reply.content)
        else:
            channel.update = reply.content

    def _learn(self, channel: Channel, answer: Answer) -> None:
        if answer.reason != "deadline" or channel.deadline_ms is None or channel.own_delay is None:
            return
        own_ms = channel.own_delay.ms()
        delay_ms = (time.perf_counter() - channel.begun) * 1e3 - channel.deadline_ms
        delay_ms -= min(max(delay_ms, 0.0), own_ms)
        if channel.deadline_ms == 0.0:
            self._margin.guess(delay_ms)
        elif delay_ms >= -1.0:  # an earlier answer has the server's own maximum, which says nothing about the network
            self._margin.add(delay_ms)

    def _lose(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = ConnectionLostError(reason)
        channels = list(self._open.values())
        for channel in (*channels, *self._abandoned.values()):
            channel.stop_measuring()
        self._open.clear()
        self._abandoned.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._ending = asyncio.create_task(self._end())
        for channel in channels:
            channel.deliver(self.lost)
        self._on_loss()


def _closing(error: ConnectionClosed) -> str:
    frame = error.rcvd
    if frame is None:
        return "the connection to the server broke"
    reason = f" {frame.reason}" if frame.reason else ""
    return f"the server closed the connection ({frame.code}{reason})"


FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
KEY_REFUSED = (401, 403)  # HTTP statuses of a missing, invalid or removed key
MAX_IDLE_PAUSE_S = 60.0  # longest pause between attempts in the background, for which no call waits
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0  # the client detects a silent network after 15 s; until then, each prediction misses its answer


def result_of(task: asyncio.Task[Result | ClientError]) -> Result:
    """Return the result of a task that several callers wait for; raise an error that it returned.

    Such a task returns errors instead of raising them, since no caller may be waiting for it any more.
    """
    if task.cancelled():
        raise ClosedError("this client was closed during the call; create a new one")
    result = task.result()
    if isinstance(result, ClientError):
        raise copy.copy(result) from result
    return result


class _Connect(connect):
    """A handshake that follows no redirect, as the HTTP client."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Connection:
    """A connection to one server, with a new link after each loss; belongs to one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.margin = NetworkMargin()
        self.throttle = Throttle()
        self._endpoint = endpoint
        self._link: Link | None = None
        self._attempt: asyncio.Task[Link | ClientError] | None = None
        self._refused: ClientError | None = None
        self._refusals = 0
        self._retry_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False

    async def link(self, until: float) -> Link | None:
        """Return the link, and connect first if necessary; return None at the time `until` of `time.perf_counter`.

        The attempt then continues in the background. Raise ConnectionLostError if the server is unreachable, and
        ProblemError if it refuses: the key is invalid, or it has too many connections.
        """
        if self._closed:
            raise ClosedError("this client is closed; create a new one")
        if self._link is not None and self._link.lost is None:
            return self._link
        if self._refused is not None and until < self._retry_at:
            raise copy.copy(self._refused) from self._refused
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
        attempt = self._attempt
        await asyncio.wait({attempt}, timeout=max(0.0, until - time.perf_counter()))
        return result_of(attempt) if attempt.done() else None

    def overdue(self, *, begun: bool) -> ClientError:
        """Return the error of a call without an answer within the timeout."""
        late = f"within {self._endpoint.timeout_s:g} s"
        if not begun:
            return self._endpoint.unreachable(TimeoutError(f"no connection {late}"))
        return NoAnswerError(f"{self._endpoint.url} did not answer {late}; is it overloaded?")

    async def close(self) -> None:
        self._closed = True
        tasks = [each for each in (self._attempt, self._keeping) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        await asyncio.gather(*self._closing)

    def _lost(self) -> None:
        if not self._closed and self._endpoint.app is None:
            self._keeping = asyncio.create_task(self._keep_open())

    async def _keep_open(self) -> None:
        """Connect again in the background after a loss: a server closes idle connections, and calls must not wait."""
        pause_s = 0.0 if self._link is None or self._link.opened + MAX_PAUSE_S < time.perf_counter() else MAX_PAUSE_S
        while not self._closed:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            with suppress(ClientError):  # the next call reports it
                await self.link(time.perf_counter() + 3.0 * self._endpoint.timeout_s)
            if self._refused is None or getattr(self._refused, "status", None) in KEY_REFUSED:
                return
            pause_s = min(2.0 * pause_s + MAX_PAUSE_S, MAX_IDLE_PAUSE_S)

    async def _connect(self) -> Link | ClientError:
        try:
            await asyncio.sleep(max(0.0, self._retry_at - time.perf_counter()))
            made = await self._open()
        finally:
            self._attempt = None
        if isinstance(made, Link):
            if self._link is not None:  # the old link is lost; closing it may take a second
                closing = asyncio.create_task(self._link.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._link, self._refused, self._refusals = made, None, 0
        else:
            self._refused, self._refusals = made, self._refusals + 1
            pause = min(FIRST_PAUSE_S * 2.0 ** min(self._refusals - 1, 16), MAX_PAUSE_S)
            self._retry_at = time.perf_counter() + pause * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)
        return made

    async def _open(self) -> Link | ClientError:
        endpoint = self._endpoint
        try:
            socket: ClientConnection | InProcessSocket
            if endpoint.app is not None:
                socket = InProcessSocket(endpoint.app, endpoint.stream, endpoint.headers, SUBPROTOCOL)
                await asyncio.wait_for(socket.open(), endpoint.timeout_s)
            else:
                try:
                    socket = await self._shake_hands()
                except (ConnectionResetError, InvalidMessage):  # one broken connection: the server is reachable
                    socket = await self._shake_hands()
        except ClientError as error:
            return error
        except InvalidStatus as error:
            return self._refusal(error)
        except (OSError, WebSocketException, UnicodeError) as error:
            return endpoint.unreachable(error)
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close(1002)
            return ConnectionLostError(
                f"{endpoint.url} does not speak {SUBPROTOCOL}; expected the address of an anytime server"
            )
        return Link(socket, self.margin, self._lost)

    async def _shake_hands(self) -> ClientConnection:
        endpoint = self._endpoint
        where: dict[str, Any] = {"unix": True, "path": endpoint.uds}
        if endpoint.uds is None:
            where = {"ssl": endpoint.context, "proxy": endpoint.proxy}
            if endpoint.proxy is None:
                parts = urlsplit(endpoint.http)
                async with asyncio.timeout(endpoint.timeout_s):
                    where["sock"] = await connected(parts.hostname or "", parts.port or PORTS[parts.scheme])
            elif isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):  # uvloop has no such option
                where["happy_eyeballs_delay"] = NEXT_AFTER_S
        return await _Connect(
            endpoint.stream,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,  # it hardly shrinks numbers, and costs time
            additional_headers=endpoint.headers,
            open_timeout=endpoint.timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            max_size=MAX_REPLY_BYTES,
            **where,
        )

    def _refusal(self, error: InvalidStatus) -> ClientError:
        response = error.response
        status = response.status_code
        if MEDIA_TYPE in response.headers.get("Content-Type", "") and response.body:
            with suppress(ReplyError):
                return decode_problem(bytes(response.body), status, seconds_of(response.headers.get("Retry-After", "")))
        redirect = self._endpoint.redirected("/stream", status, response.headers.get("Location"))
        return redirect or ConnectionLostError(f"{self._endpoint.url} refused the connection with HTTP status {status}")
