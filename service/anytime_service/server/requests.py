"""Requests of HTTP/1.1, without I/O: one code for all heads, also those of WebSockets, and the framing of bodies.

httptools parses a head, and sees nothing behind it: whether an Upgrade field counts, how a body is framed and where the
next request begins is decided here, so that no byte of a body is ever parsed as a request. Every byte of a request is
counted: those of its body against the limit for bodies, and all others (request line, headers, blank lines, chunk
extensions, trailers) together against the limit for heads. Trailers are ignored.
"""

from __future__ import annotations

import logging
import re
from typing import Any
from urllib.parse import unquote

import httptools

from anytime_service.errors import HeadTooLargeError, MalformedBodyError, TransferCodingError
from anytime_service.limits.table import HEADERS

MAX_HEADERS = int(HEADERS)
MAX_CHUNKS = 256  # chunks of a body that are read at once
CHUNK_FRAMING = 20  # bytes around each chunk that do not count: 16 hexadecimal digits and two line ends

_log = logging.getLogger("anytime_service")

_END = b"\r\n\r\n"
_OF_CONNECTION = frozenset((b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade"))
_NO_LENGTH = [b"0"]
_VERSIONS = ("1.0", "1.1")  # the parser accepts 0.9 and 2.0 too
_HOST = re.compile(rb"(?:\[[\w:.%~-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?[ \t]*")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#@]+)((?:[/?#].*)?)")
_CHUNK = re.compile(rb"\r\n([0-9a-fA-F]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_PART_OF_CHUNK = re.compile(rb"(?:\r(?:\n[0-9a-fA-F]{0,16}(?:(?<=[0-9a-fA-F])(?:;[\t\x20-\x7e\x80-\xff]*)?\r?)?)?)?")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")


class Head:
    """The head of one request.

    Attributes
    ----------
    size : int
        Its bytes with those of blank lines before it, without the line end with which a body in chunks begins.
    counted : int
        Its bytes without blank lines.
    fields : dict[bytes, list[bytes]]
        The values of the headers that matter to the connection, in lower case.
    complete : bool
        Whether all of it was received.
    keep_alive : bool
        Whether the client permits further requests on its connection.
    """

    __slots__ = (
        "_parser",
        "begun",
        "complete",
        "counted",
        "fields",
        "headers",
        "keep_alive",
        "method",
        "size",
        "url",
        "version",
    )

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, list[bytes]] = {}
        self.complete = self.keep_alive = False
        self.method = self.version = ""
        self.size = self.counted = 0
        self._parser: Any = None

    def read(self, data: bytes, max_size: int) -> None:
        """Read the beginning of `data`; raise MalformedBodyError, HeadTooLargeError or TransferCodingError.

        A head in part is read again with more of it: nothing but its bytes is stored.
        """
        start = len(data) - len(data.lstrip(b"\r\n"))
        end = data.find(_END, start)
        self.size = len(data) if end < 0 else end + len(_END)
        self.counted = self.size - start
        if max(start, self.counted) > max_size:
            self.url = b"".join(data[start : self.size].split(b" ", 2)[1:2])
            raise too_large(max_size)
        if not self.counted:
            return
        self._parse(data[start : self.size])
        if len(self.headers) > MAX_HEADERS:
            raise HeadTooLargeError(f"the request has more than {MAX_HEADERS} headers; send fewer")
        if self.complete != (end >= 0):
            raise malformed()
        if self.complete and b"upgrade" in self.fields and not self.becomes_websocket():
            # The parser does not check the framing of the body that such a request has.
            lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            first = b"%b %b HTTP/%b" % (self.method.encode(), self.url, self.version.encode())
            self.url = b""
            self.headers.clear()
            self.fields.clear()
            self._parse(b"\r\n".join((first, *lines, b"", b"")))
        if self.complete and b"transfer-encoding" in self.fields:
            self.size -= 2

    def _parse(self, content: bytes) -> None:
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(content)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            raise malformed() from None
        finally:
            self._parser = None  # it refers to this object

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in _OF_CONNECTION:
            self.fields.setdefault(name, []).append(value.strip().lower())

    def on_headers_complete(self) -> None:
        parser = self._parser
        self.method, self.version = parser.get_method().decode(), parser.get_http_version()
        self.keep_alive = self.version != "1.0" and parser.should_keep_alive()
        self.complete = True

    def target(self) -> tuple[bytes, bytes]:
        """Return path and query, and make the host of an absolute target that of the request (RFC 9112, 3.2.2).

        Raise an error, as `read`, for a head that RFC 9112 forbids to answer otherwise.
        """
        if self.method == "CONNECT":
            raise MalformedBodyError(
                "CONNECT is not supported, because this server is not a proxy; send the request to it directly"
            )
        if self.version not in _VERSIONS:
            raise MalformedBodyError(f"the version of the request is HTTP/{self.version}; expected HTTP/1.1")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.version != "1.0"):
            raise MalformedBodyError(f"the request has {len(hosts)} Host headers; send one")
        codings = self.fields.get(b"transfer-encoding")
        if codings and self.version == "1.0":
            raise MalformedBodyError("HTTP/1.0 has no Transfer-Encoding; send the request by HTTP/1.1")
        if codings not in (None, [b"chunked"]):
            raise TransferCodingError("the only supported Transfer-Encoding is chunked; send the body without others")
        target = self.url
        if not target.startswith(b"/") and not (target == b"*" and self.method == "OPTIONS"):
            found = _ABSOLUTE.fullmatch(target)
            if found is None:
                raise MalformedBodyError("the target of the request is invalid; expected a path or an http address")
            hosts, target = [found[1]], found[2] if found[2].startswith(b"/") else b"/" + found[2]
            self.headers = [(b"host", found[1]), *(each for each in self.headers if each[0] != b"host")]
        if hosts and _HOST.fullmatch(hosts[0]) is None:
            host = hosts[0][:100].decode("latin-1")
            raise MalformedBodyError(f"the host of the request is {host!r}; expected a name or an address")
        path, _, query = target.partition(b"#")[0].partition(b"?")
        if not path.isascii():
            raise MalformedBodyError("the path has bytes that are not ASCII; percent-encode them")
        return path, query

    def scope(self, connection: dict[str, Any]) -> dict[str, Any]:
        """Return the ASGI scope of the request, with what all requests of a connection share; raises as `target`."""
        path, query = self.target()
        root, decoded = connection["root_path"], path.decode()
        return connection | {
            "http_version": self.version,
            "method": self.method,
            "path": root + (unquote(decoded) if "%" in decoded else decoded),
            "raw_path": root.encode() + path,
            "query_string": query,
            "headers": self.headers,
            "state": connection["state"].copy(),
        }

    def body(self, max_size: int) -> Body | None:
        """Return the framing of the body; None without one. The parser has refused every other framing."""
        if b"transfer-encoding" in self.fields:
            return Body(None, self.counted, max_size)
        length = int(self.fields.get(b"content-length", _NO_LENGTH)[0])
        return Body(length, self.counted, max_size) if length else None

    def becomes_websocket(self) -> bool:
        """Return whether this is a WebSocket's handshake: a GET of HTTP/1.1 without a body (RFC 9110, 7.8)."""
        fields = self.fields
        return (
            fields.get(b"upgrade") == [b"websocket"]
            and self.method == "GET"
            and self.version == "1.1"
            and b"upgrade" in map(bytes.strip, b",".join(fields.get(b"connection", ())).split(b","))
            and b"transfer-encoding" not in fields
            and fields.get(b"content-length", _NO_LENGTH) == _NO_LENGTH
        )


class Body:
    """The framing of a body: of `length` bytes, or in chunks, whose extensions and trailers have a limit.

    The first chunk begins with the line end of the head, as every other one with that of the chunk before it. `framing`
    counts the bytes of the request so far.

    Attributes
    ----------
    length : int | None
        Its bytes; None for a body in chunks.
    complete
        Whether all of it has been read.
    pieces
        Number of pieces in the last part that was read.
    """

    __slots__ = ("_framing", "_left", "_max_framing", "_trails", "complete", "length", "pieces")

    def __init__(self, length: int | None, framing: int, max_framing: int) -> None:
        self.complete = False
        self.pieces = 0
        self.length = length
        self._left = length or 0  # bytes of the body, or of a chunk, that were not read
        self._trails = False
        self._framing = framing
        self._max_framing = max_framing

    def read(self, data: bytes) -> tuple[bytes, int]:
        """Return the content at the beginning of `data`, and how many bytes it has with its framing.

        Raise MalformedBodyError, or HeadTooLargeError for too much framing.
        """
        if self.length is not None:
            content = data[: self._left]
            self._left -= len(content)
            self.complete, self.pieces = not self._left, 1
            return content, len(content)
        parts: list[bytes] = []
        at = 0
        while len(parts) < MAX_CHUNKS and not self.complete:
            if self._left:
                parts.append(data[at : at + self._left])
                at += len(parts[-1])
                self._left -= len(parts[-1])
                if self._left:
                    break
            found = (_TRAILERS if self._trails else _CHUNK).match(data, at)
            self._check_framing(data, at, None if found is None else found.end())
            if found is None:
                break
            at = found.end()
            if self._trails:
                self.complete = True
            else:
                self._left = int(found[1], 16)
                self._trails = not self._left
        self.pieces = len(parts) + self.complete
        return b"".join(parts), at

    def _check_framing(self, data: bytes, at: int, end: int | None) -> None:
        """Count the framing up to `end`; without one it is in part, and must be the beginning of a valid one."""
        size = max((len(data) if end is None else end) - at - CHUNK_FRAMING, 0)
        if self._framing + size > self._max_framing:
            raise too_large(self._max_framing)
        if end is not None:
            self._framing += size
        elif self._trails:
            if data.find(_END, at) >= 0:
                raise malformed()
        elif _PART_OF_CHUNK.fullmatch(data, at) is None:
            raise malformed()


def malformed() -> MalformedBodyError:
    """Return the error for bytes that are not HTTP, and log it."""
    _log.warning("Invalid HTTP request received.")
    return MalformedBodyError("invalid HTTP request received; expected HTTP/1.1")


def too_large(limit: int) -> HeadTooLargeError:
    return HeadTooLargeError(
        f"request line, headers, chunk framing and trailers exceed {limit} bytes; send at most that many"
    )
