"""The ways to a server, with one interface: `Network` to an address, `InProcess` to an application of this process.

A `Transport` opens WebSockets and sends HTTP requests with the same address, key, timeout and errors. `Network`
connects both by the same rules: any address of a name (RFC 8305), and no redirect, so that the key reaches no other
host. `Lifetime` owns what a client runs in the background.

httpx and websockets read the variables of the environment differently. The client reads them once, by these rules, and
passes the result to both:

- `HTTPS_PROXY` or `HTTP_PROXY` for the scheme of the server, else `ALL_PROXY`; lower case too, and the system's
  settings on Windows and macOS. SOCKS needs the packages `python-socks` and `socksio`.
- `NO_PROXY` lists hosts, domains with their subdomains, addresses and ranges (`10.0.0.0/8`, `fd00::/8`), each with or
  without a port, or `*`.
- `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's certificates.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
import time
from abc import ABC, abstractmethod
from asyncio.staggered import staggered_race
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from ssl import SSLContext, create_default_context
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidMessage, InvalidStatus, WebSocketException
from websockets.frames import Close
from websockets.typing import Subprotocol

from anytime.errors import AnytimeError, summary
from anytime_service.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
)
from anytime_service.client.messages import parsed, problem_of, seconds_of
from anytime_service.schemas.catalogue import ModelSummary
from anytime_service.schemas.codecs import JSON, Form
from anytime_service.schemas.messages import SUBPROTOCOL
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.urls import server_url

MAX_REPLY_BYTES = 64 * 1024 * 1024  # largest accepted reply: twice the size of 10,000 rows of 100 classes
KEEPALIVE_S = 2.0  # lifetime of idle connections: servers close theirs after 5 s, so reusing an older one could fail
CLOSE_TIMEOUT_S = 1.0
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0  # the client detects a silent network after 15 s; until then, each prediction misses its answer
NEXT_AFTER_S = 0.25  # after this time without an answer, the next address of a name is tried

ASGIApp: TypeAlias = Callable[..., Awaitable[None]]
Result = TypeVar("Result")

log = logging.getLogger("anytime.client")
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


PORTS = {"http": 80, "https": 443}
"""Default ports; the system's list of services may be missing."""

_SOCKS = ("socks5", "socks5h")
_PROXIES = ("http", "https", *_SOCKS)


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy for a server at `http://...` or `https://...`; None without one.

    Raise ClientError, which names the variable, if the proxy is invalid or not supported.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(kind)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS[parts.scheme]
    exceptions = proxies.get("no", "").lower().replace(",", " ").split()
    if not proxy or any(each == "*" or _matches(host, port, each) for each in exceptions):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    name = next((name for name in os.environ if name.lower() == f"{kind}_proxy"), f"the system's {kind} proxy")
    expected = f"expected http://HOST:PORT, https:// or socks5://, or {parts.hostname} in NO_PROXY"
    found = server_url(proxy, _PROXIES)
    if found is None:
        raise ClientError(f"{name} is {without_password(proxy)!r}; {expected}")
    if found.scheme in _SOCKS and not (find_spec("python_socks") and find_spec("socksio")):
        raise ClientError(
            f"{name} is {without_password(proxy)!r}, and a package for SOCKS is missing; "
            f"pip install python-socks[asyncio] socksio, or list {parts.hostname} in NO_PROXY"
        )
    return proxy


def _matches(host: str, port: int, entry: str) -> bool:
    """Return whether an entry of `NO_PROXY` contains a host."""
    has_port = entry.count(":") == 1 or "]:" in entry  # an address of IPv6 has more colons
    name, _, wanted = entry.rpartition(":") if has_port else (entry, "", "")
    name = name.strip("[]")
    if wanted and wanted != str(port):
        return False
    with suppress(ValueError):  # a name, not an address
        return ip_address(host) in ip_network(name, strict=False)
    name = name.removeprefix("*").strip(".")
    is_name = bool(name.strip("0123456789."))  # the end of an address is no domain
    return is_name and (host == name or host.endswith(f".{name}"))


def certificates() -> SSLContext:
    """Return the context for TLS with the certificates that the environment or the system trusts.

    Raise ClientError, which names the variable, if its file or folder is unreadable or not of certificates.
    """
    context = create_default_context()  # OpenSSL ignores invalid ones
    readers: dict[str, Callable[[str], object]] = {
        "SSL_CERT_FILE": context.load_verify_locations,
        "SSL_CERT_DIR": os.listdir,
    }
    for name, read in readers.items():
        path = os.environ.get(name)
        try:
            if path:
                read(path)
        except OSError as error:  # also that of TLS
            raise ClientError(f"{name} is {path!r}: {error}; expected certificates, or no {name}") from error
    return context


def without_password(url: str) -> str:
    """Return a URL for messages, without user and password; the URL may be invalid."""
    scheme, separator, rest = url.rpartition("://")
    host = rest.partition("/")
    return f"{scheme}{separator}{host[0].rpartition('@')[2]}{host[1]}{host[2]}"


class Lifetime:
    """The event loop and the process of a client, and its tasks that no call waits for; they end with it."""

    def __init__(self) -> None:
        self.closed = False
        self.process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[asyncio.Task[Any], bool] = {}

    def check_open(self) -> None:
        """Raise ClosedError if the client is closed, or was created by another process."""
        if self.process != os.getpid():
            raise ClosedError("this client was created before a fork; create a new one in this process")
        if self.closed:
            raise ClosedError("this client is closed; create a new one")

    def check(self) -> None:
        """Raise ClosedError unless the client is usable in this event loop."""
        self.check_open()
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise ClosedError("this client belongs to another event loop; create one per event loop, or use Client")

    def start(self, work: Coroutine[Any, Any, Result], *, to_its_end: bool = False) -> asyncio.Task[Result]:
        """Run a coroutine in the background; `close` waits for it `to_its_end`, or cancels it."""
        task = asyncio.create_task(work)
        self._tasks[task] = to_its_end
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        self.closed = True
        while self._tasks:
            for task, to_its_end in self._tasks.items():
                if not to_its_end:
                    task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AnytimeError):  # `joined` raises those
            log.error("a task of the client failed", exc_info=error)


async def joined(task: asyncio.Task[Any], until: float = math.inf) -> bool:
    """Wait for a task that several callers share; return False at the time `until` of `time.perf_counter`.

    Raise the error of the task, and ClosedError if the client was closed during the call.
    """
    await asyncio.wait({task}, timeout=None if until == math.inf else max(until - time.perf_counter(), 0.0))
    try:
        if task.done():
            task.result()
    except asyncio.CancelledError:
        raise ClosedError("this client was closed during the call; create a new one") from None
    except ClientError as error:
        raise type(error)(*error.args) from error
    return task.done()


class Transport(ABC):
    """The way to one server.

    `url` is its address for messages, `http` the base URL of its routes without a trailing slash, and `stream` the URL
    of its WebSocket. `uds` is the path of a Unix socket that replaces the host in the URLs, "" for none. `headers`
    contain the key.
    """

    reconnects = True
    """Whether a client connects again before the next call needs it."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        """Parse `http://host:port`, `https://...`, with or without a path, or `unix:/path/of/socket`.

        Raise ClientError if the URL has another form, the key has invalid characters, or an option is invalid.
        """
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s!r}; expected a number of seconds > 0")
        if api_key is not None and not re.fullmatch("[!-~]+", api_key):
            raise ClientError(
                "the API key has characters that are invalid in a header; expected printable ASCII, no spaces"
            )
        self.uds = url.removeprefix("unix:") if url.startswith("unix:") else ""
        self.url = url if self.uds else without_password(url)
        parts = server_url("http://localhost" if self.uds else url, _SCHEMES)  # the host is only that of the header
        if parts is None or parts.query or parts.fragment:
            raise ClientError(f"the address of the server is {self.url!r}; expected one like http://127.0.0.1:8000")
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        if parts.username is not None:
            if api_key is not None:
                raise ClientError(f"both the address {self.url} and api_key have credentials; expected one of them")
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.headers = {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}
        scheme = _SCHEMES[parts.scheme]
        base = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
        self.http = f"{scheme.replace('ws', 'http')}://{base}"
        self.stream = f"{scheme}://{base}/stream"
        self.timeout_s = timeout_s
        self.lifetime = Lifetime()
        self._client: httpx.AsyncClient | None = None

    @abstractmethod
    def _routes(self) -> httpx.AsyncBaseTransport:
        """Return the way of HTTP requests."""

    @abstractmethod
    async def _socket(self) -> Socket:
        """Shake hands for a WebSocket."""

    async def open(self) -> Socket:
        """Open a WebSocket; raise ClientError if the server is unreachable, refuses, or speaks another protocol."""
        try:
            opened = await self._socket()
        except ClientError:
            raise
        except (OSError, WebSocketException, UnicodeError) as error:
            raise self.unreachable(error) from error
        if opened.subprotocol != SUBPROTOCOL:
            await opened.close(1002)
            raise ConnectionLostError(
                f"{self.url} does not speak {SUBPROTOCOL}; expected the address of an anytime server"
            )
        return opened

    async def model(self, name: str) -> ModelSummary:
        """Return the description of a model, without the fields that this client does not know."""
        return parsed(
            await self.request("GET", f"/models/{quote(name, safe='')}"),
            partial(ModelSummary.model_validate_json, extra="ignore"),
        )

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
        limit_s = self.timeout_s + waits_s
        exchange = partial(
            self._exchange,
            method,
            self.http + path,
            params=params,
            content=content,
            headers={} if content is None else {"Content-Type": form.media_type},
            timeout=httpx.Timeout(self.timeout_s, read=limit_s),
        )
        try:
            # The timeout of httpx is that of each read, and an application in this process has none.
            async with asyncio.timeout(self.timeout_s + limit_s):
                try:
                    response, body = await exchange()
                except _BROKEN:
                    if once:
                        raise
                    response, body = await exchange()
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.InvalidURL, UnicodeError) as error:
            raise self.unreachable(error) from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise NoAnswerError(f"{self.url} did not reply within {limit_s:g} s to {method} {path}") from error
        except (httpx.HTTPError, AssertionError) as error:  # the latter of an application that sends no reply
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(f"{method} {path} at {self.url} broke: {reason}") from error
        if response.is_success:
            return body
        raise self._refusal(path, response.status_code, response.headers, body)

    async def close(self) -> None:
        """End the tasks of the client, then close the connections for requests."""
        await self.lifetime.close()
        if self._client is not None:
            await self._client.aclose()

    def unreachable(self, error: Exception) -> ConnectionLostError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return ConnectionLostError(f"cannot connect to {self.url}: {reason}")

    def _refusal(self, path: str, status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
        """Return the error of a response to a request or a handshake: a redirect, problem details, or any other."""
        location = headers.get("Location")
        if location is not None and 300 <= status < 400:
            target = urlsplit(urljoin(self.http + path, location))._replace(query="", fragment="").geturl()
            where = without_password(target).removesuffix(path)
            return ReplyError(f"{self.url} redirects to {where} ({status}); expected the address of the server itself")
        after_s = seconds_of(headers.get("Retry-After", ""))
        if body and MEDIA_TYPE in headers.get("Content-Type", ""):
            return problem_of(parsed(body, msgspec.json.decode), status, after_s)
        if path == "/stream":
            return ConnectionLostError(f"{self.url} refused the connection with HTTP status {status}")
        title = httpx.codes.get_reason_phrase(status) or "refused"
        text = body[:200].decode("utf-8", "replace").strip() or title
        return ProblemError(status, title, text, retry_after_s=after_s)

    async def _exchange(self, method: str, url: str, **request: Any) -> tuple[httpx.Response, bytes]:
        self.lifetime.check()
        if self._client is None:  # on first use, since reading the system's certificates takes time
            headers = {"Accept": "application/json", **self.headers}
            self._client = httpx.AsyncClient(headers=headers, transport=self._routes(), trust_env=False)
        content = bytearray()
        async with self._client.stream(method, url, **request) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_REPLY_BYTES:
                    raise ReplyError(
                        f"the server sent a reply of more than {MAX_REPLY_BYTES} bytes; expected a smaller one"
                    )
        return response, bytes(content)


class _Connect(connect):
    """A handshake that follows no redirect, as the HTTP client."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Network(Transport):
    """The way to a server over TCP, with or without TLS and a proxy, or over a Unix socket.

    A name often has an IPv6 and an IPv4 address, and packets to one of them may be lost (RFC 8305, "happy eyeballs").
    """

    def __init__(self, url: str, api_key: str | None, timeout_s: float, ssl: SSLContext | None = None) -> None:
        super().__init__(url, api_key, timeout_s)
        if ssl is not None and not self.http.startswith("https"):
            raise ClientError(f"the ssl context does not apply to {self.url}; expected an https:// address")
        self._ssl = ssl

    @cached_property
    def _proxy(self) -> str | None:
        return None if self.uds else proxy_of(self.http)

    @cached_property
    def _context(self) -> SSLContext | None:
        """Context for TLS, the caller's or that of the environment; None without TLS."""
        return self._ssl or (certificates() if self.http.startswith("https") else None)

    def _routes(self) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(keepalive_expiry=KEEPALIVE_S)
        return httpx.AsyncHTTPTransport(
            verify=self._context or False, trust_env=False, limits=limits, proxy=self._proxy, uds=self.uds or None
        )

    async def _socket(self) -> Socket:
        try:
            try:
                return await self._handshake()
            except (ConnectionResetError, InvalidMessage):  # one broken connection: the server is reachable
                return await self._handshake()
        except InvalidStatus as error:
            refusal = error.response
            raise self._refusal("/stream", refusal.status_code, refusal.headers, bytes(refusal.body or b"")) from error

    async def _handshake(self) -> Socket:
        where: dict[str, Any] = {"ssl": self._context, "proxy": self._proxy}
        if self.uds:
            where = {"unix": True, "path": self.uds}
        elif isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            where["happy_eyeballs_delay"] = NEXT_AFTER_S
        elif self._proxy is None:  # uvloop has no such option
            parts = urlsplit(self.http)
            async with asyncio.timeout(self.timeout_s):
                where["sock"] = await _connected(parts.hostname or "", parts.port or PORTS[parts.scheme])
        return await _Connect(
            self.stream,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,  # it hardly shrinks numbers, and costs time
            additional_headers=self.headers,
            open_timeout=self.timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            max_size=MAX_REPLY_BYTES,
            **where,
        )


async def _connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first address of a name that answers; raise OSError if none does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    made, _, errors = await staggered_race([partial(_attempt, *each) for each in found], NEXT_AFTER_S)
    if isinstance(made, socket.socket):
        return made
    raise OSError("; ".join(dict.fromkeys(map(str, errors))))


async def _attempt(family: int, kind: int, protocol: int, _name: str, address: Any) -> socket.socket:
    with ExitStack() as opened:
        made = opened.enter_context(socket.socket(family, kind, protocol))
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address)
        opened.pop_all()
    return made


class InProcess(Transport):
    """The way to an ASGI application, which runs in the event loop of the client."""

    reconnects = False

    def __init__(self, url: str, api_key: str | None, timeout_s: float, app: ASGIApp) -> None:
        super().__init__(url, api_key, timeout_s)
        self._app = app

    def _routes(self) -> httpx.AsyncBaseTransport:
        return httpx.ASGITransport(self._app, raise_app_exceptions=False)

    async def _socket(self) -> Socket:
        made = _InProcessSocket(self._app, self.stream, self.headers)
        async with asyncio.timeout(self.timeout_s):
            reply = await made.reply()
            if reply["type"] == "websocket.accept":
                made.subprotocol = reply.get("subprotocol")
                return made
            body = (await made.reply()).get("body", b"") if "status" in reply else b""
        raise self._refusal("/stream", reply.get("status", 403), httpx.Headers(reply.get("headers")), body)


class _InProcessSocket:
    """One WebSocket; its messages pass through queues, and the application runs as a task of this event loop."""

    def __init__(self, app: ASGIApp, url: str, headers: Mapping[str, str]) -> None:
        self.subprotocol: str | None = None
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_app.put_nowait({"type": "websocket.connect"})
        parts = urlsplit(url)
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": parts.scheme,
            "server": (parts.hostname, parts.port),
            "client": ("127.0.0.1", 0),
            "root_path": "",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in {"host": parts.netloc, **headers}.items()],
            "subprotocols": [SUBPROTOCOL],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }
        self._task = asyncio.ensure_future(app(scope, self._to_app.get, self._from_app.put))
        self._task.add_done_callback(lambda _: self._from_app.put_nowait({"type": "end"}))

    async def reply(self) -> dict[str, Any]:
        """Return the next message of the application; raise WebSocketException if it has failed."""
        message = await self._from_app.get()
        if message["type"] == "end" and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise WebSocketException(f"the application failed: {summary(error)}") from error
        return message

    async def recv(self) -> str | bytes:
        message = await self.reply()
        if message["type"] != "websocket.send":
            raise ConnectionClosedError(Close(message.get("code", 1000), message.get("reason") or ""), None)
        content: str | bytes | None = message.get("bytes")
        return str(message["text"]) if content is None else content

    async def send(self, content: bytes, /) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "bytes": content})
        await asyncio.sleep(0)

    async def close(self, code: int = 1000) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": code})
        await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        self._task.cancel()


Socket: TypeAlias = ClientConnection | _InProcessSocket
"""An open WebSocket: `recv`, `send`, `close`, `subprotocol`."""
