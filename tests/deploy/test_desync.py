"""Random byte streams directly and through each shipped proxy: each answer belongs to its request.

Two attackers send streams of one or several requests, cut anywhere: lengths, chunks, upgrades that are not accepted,
pipelining, contradictions, and requests hidden in bodies. Every request has an id, which its response repeats, and a
value, which its prediction shows. A third client, which is honest, uses the same connections of the proxy.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import httpx
import pytest

from service.serving import Running, expected, small_model

SECONDS = float(os.environ.get("DESYNC_S", "10"))
"""Time of all streams; a quarter for each way to the service."""

WAITS_S = 0.3  # a client reads answers for so long after it has sent its stream; what arrives later is not checked
MODEL = small_model()
VALUES = [round(0.5 + 0.25 * i, 2) for i in range(40)]
ANSWERS = {value: expected(MODEL, {"speed": [value]})["prediction"] for value in VALUES}

UPGRADES = (b"h2c", b"websocket", b"foo/1", b"h2c, websocket", b"TLS/1.2")
CONTRADICTIONS = (
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 0x5\r\n",
)


@dataclass(frozen=True)
class Sent:
    """A request of a stream: its id, its method, and the value that its prediction must show."""

    id: str
    method: str
    value: float | None


class Streams:
    """Random streams of one client, each with the requests that are visible in it."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._prefix = seed.replace(" ", "-")
        self._count = 0

    def stream(self) -> tuple[list[bytes], list[Sent]]:
        """Return the pieces of a stream and its requests."""
        requests = [self._request() for _ in range(self.random.choice((1, 1, 2, 3, 5)))]
        content = b"".join(each for each, _ in requests)
        if self.random.random() < 0.1:
            content = content[: self.random.randrange(len(content))]
        cuts = sorted(self.random.randrange(len(content) + 1) for _ in range(self.random.choice((0, 0, 1, 2, 8))))
        pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
        return pieces, [sent for _, sent in requests]

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._prefix}-{self._count}"

    def _hidden(self) -> bytes:
        name = self._id("hidden").encode()
        body = b'{"groups": {"speed": [%g]}}' % self.random.choice(VALUES)
        return self.random.choice(
            (
                b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\n\r\n" % name,
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (name, len(body), body),
            )
        )

    def _request(self) -> tuple[bytes, Sent]:
        name, choose = self._id("seen"), self.random
        own = b"Host: localhost\r\nX-Request-Id: %b\r\n" % name.encode()
        if choose.random() < 0.2:
            method = choose.choice(("GET", "HEAD", "OPTIONS"))
            head = b"%b /livez HTTP/1.1\r\n%b\r\n" % (method.encode(), own + self._upgrade(0.5))
            return head, Sent(name, method, None)
        number = choose.choice(VALUES)
        value: float | None = number
        body = b'{"groups": {"speed": [%g]}}' % number
        if choose.random() < 0.4:
            value, body = None, choose.choice((b"", b"\r\n" * 3000, b"0\r\n\r\n")) + self._hidden()
        fields = self._upgrade(0.4) + choose.choice((b"", b"", b"", b"Expect: 100-continue\r\n"))
        kind = choose.random()
        if kind < 0.15:
            fields, value = fields + choose.choice(CONTRADICTIONS), None
        elif kind < 0.55:
            fields += b"Content-Length: %d\r\n" % len(body)
        else:
            fields, body = fields + b"Transfer-Encoding: chunked\r\n", self._chunks(body)
        head = b"POST /predict HTTP/1.1\r\n%bContent-Type: application/json\r\n%b\r\n" % (own, fields)
        return head + body, Sent(name, "POST", value)

    def _upgrade(self, share: float) -> bytes:
        if self.random.random() > share:
            return b""
        options = self.random.choice((b"Upgrade", b"Upgrade, HTTP2-Settings", b"keep-alive, Upgrade"))
        return b"Connection: %b\r\nUpgrade: %b\r\n" % (options, self.random.choice(UPGRADES))

    def _chunks(self, body: bytes) -> bytes:
        content = b""
        while body:
            size = self.random.randint(1, max(len(body), 1))
            content += b"%x%b\r\n%b\r\n" % (size, self.random.choice((b"", b";a=b")), body[:size])
            body = body[size:]
        trailer = self.random.choice((b"", b"", b"X-Request-Id: hidden-trailer\r\n", b"Content-Length: 7\r\n"))
        return content + b"0\r\n" + trailer + b"\r\n"


def exchanged(port: int, pieces: list[bytes]) -> bytes:
    """Send a stream in pieces; return what arrives until the server closes or is silent."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
        sock.settimeout(WAITS_S)
        while data := sock.recv(65_536):
            received += data
    return received


def responses(received: bytes, methods: dict[str, str]) -> Iterator[tuple[int, str, bytes]]:
    """Yield status, id and body of each complete response; the id is empty where a proxy or the edge refuses."""
    while b"\r\n\r\n" in received:
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1."), f"no response begins here: {first[:200]!r}"
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status, name = int(first.split()[1]), fields.get("x-request-id", "")
        if status == 101:
            return
        body = b""
        if status < 200 or status in (204, 304) or methods.get(name) == "HEAD":
            pass
        elif fields.get("transfer-encoding") == "chunked":
            while True:
                size, _, received = received.partition(b"\r\n")
                if not size or not received:
                    return
                length = int(size, 16)
                body, received = body + received[:length], received[length + 2 :]
                if not length:
                    break
        elif "content-length" in fields:
            length = int(fields["content-length"])
            body, received = received[:length], received[length:]
            if len(body) < length:
                return
        else:
            body, received = received, b""
        if status >= 200:
            yield status, name, body


def shown(pieces: list[bytes]) -> str:
    """Return a stream for a message, without its long runs of blank lines."""
    return repr([piece.replace(b"\r\n" * 100, b"") for piece in pieces])


def faults(sent: list[Sent], received: bytes) -> list[str]:
    """Return the answers that do not belong to their requests."""
    found, place = [], 0
    order, known = [each.id for each in sent], {each.id: each for each in sent}
    for status, name, body in responses(received, {each.id: each.method for each in sent}):
        if not name.startswith(("seen", "hidden")):  # a refusal, whose id the edge or the proxy does not know
            continue
        if name not in order[place:]:
            found.append(f"the answer {status} to {name}, which is not next in {order}")
            continue
        place = order.index(name) + 1
        value = known[name].value
        if status == 200 and value is not None and json.loads(body)["prediction"] != pytest.approx(ANSWERS[value]):
            found.append(f"{name} has the prediction of another value: {body[:200]!r}")
    return found


def test_each_answer_belongs_to_its_request(way: Running) -> None:
    seed = random.SystemRandom().randrange(10**9)
    until = monotonic() + SECONDS / 4
    found: list[str] = []
    counts = {"streams": 0, "answers": 0}

    def attack(number: int) -> None:
        streams = Streams(f"{seed} {number}")
        while monotonic() < until and not found:
            pieces, sent = streams.stream()
            received = exchanged(way.port, pieces)
            counts["streams"] += 1
            counts["answers"] += received.count(b"HTTP/1.1 200")
            try:
                wrong = faults(sent, received)
            except (AssertionError, ValueError, KeyError) as error:
                wrong = [f"{type(error).__name__}: {error}"]
            found.extend(f"seed {seed} {number}: {each}; sent {shown(pieces)}" for each in wrong)

    attackers = [threading.Thread(target=attack, args=(number,)) for number in range(2)]
    for attacker in attackers:
        attacker.start()
    choose, count = random.Random(seed), 0
    with httpx.Client(base_url=f"http://127.0.0.1:{way.port}", timeout=60) as honest:
        while monotonic() < until or not count:
            count += 1
            value, name = choose.choice(VALUES), f"honest-{count}"
            body = {"groups": {"speed": [value]}}
            response = honest.post("/predict", json=body, headers={"X-Request-Id": name, "Host": "localhost"})
            assert (response.status_code, response.headers["x-request-id"]) == (200, name), seed
            assert response.json()["prediction"] == pytest.approx(ANSWERS[value]), seed
    for attacker in attackers:
        attacker.join(60)
    assert not found, "\n".join(found[:3])
    assert counts["answers"] > 0, "the streams must have answers, or they show nothing"
