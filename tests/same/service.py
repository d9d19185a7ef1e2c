"""What the service answers: recorded exchanges with `anytime serve`, over every binding.

Run in the environment of either commit: `python -P -m same.service INPUTS OUT 0 1 MATCH`. Each commit trains the models
that it serves. No result depends on the speed of the machine: a deadline is 0, far away, or expires after everything
was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import msgspec

from same.library import command
from same.tables import tasks
from same.wire import BINARY, CLOSE, LAST, PING, WAIT_S, Connection, chunk, exchange, frame, message, request, stream

JSON, MSGPACK, NDJSON = "application/json", "application/msgpack", "application/x-ndjson"

TRAINED = {
    "clinic": "--alpha 0.01 --basis hinge:1 --calibrate {held}",
    "text": "--alpha 0.01 --family binomial",
    "classes": "--alpha 0.01 --basis linear --calibrate {held}",
    "weights": "--alpha 0.01 --family poisson",
    "dates": "--alpha 0.01",
}
"""The served models: options of `anytime train`, by table."""

TEXTS = {"berth": {0: "port"}, "home": {0: "town"}, "form": {1: "zone"}}
"""Columns of text, by group and place."""

ALL = {
    "interview": [59, 2],
    "scales": [32.1],
    "cuff": [101],
    "cholesterol": [157, 93.2, 38, 4],
    "triglycerides": [4.86],
}
ALL |= {"glucose": [87]}
THREE = {"scales": [[32.1], [21.6], [30.5]], "interview": [[59, 2], [48, 1], [72, 2]]}
TICKET, BERTH = {"ticket": [7.25, True]}, {"berth": ["Oslo", 17]}

CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "nothing": ("clinic", {}, {}),
    "one group": ("clinic", {"scales": [27.5]}, {}),
    "two groups": ("clinic", {"scales": [27.5], "cuff": [88]}, {}),
    "all groups": ("clinic", ALL, {}),
    "reverse order": ("clinic", dict(reversed(ALL.items())), {}),
    "arrived": ("clinic", {"scales": [27.5], "glucose": [80]}, {"policy": "arrived", "explain": "true"}),
    "best": ("clinic", ALL, {"policy": "best"}),
    "budget 0": ("clinic", {"scales": [27.5]}, {"budget": 0}),
    "budget 5": ("clinic", ALL, {"budget": 5}),
    "budget below 0": ("clinic", ALL, {"budget": -1}),
    "budget of text": ("clinic", ALL, {"budget": "much"}),
    "deadline 0": ("clinic", {"scales": [27.5]}, {"deadline_ms": 0}),
    "deadline far away": ("clinic", {"scales": [27.5]}, {"deadline_ms": 60_000}),
    "deadline below 0": ("clinic", {"scales": [27.5]}, {"deadline_ms": -5}),
    "explained": ("clinic", ALL, {"explain": "true"}),
    "three rows": ("clinic", THREE, {"ranking": "true", "explain": "true"}),
    "three rows stated": ("clinic", THREE, {"rows": 3, "budget": 2}),
    "wrong number of rows": ("clinic", THREE, {"rows": 2}),
    "rows that differ": ("clinic", {**THREE, "cuff": [[1], [2]]}, {}),
    "rows 0": ("clinic", {"scales": [27.5]}, {"rows": 0}),
    "overload prior": ("clinic", {"scales": [27.5]}, {"overload": "prior"}),
    "unknown policy": ("clinic", ALL, {"policy": "newest"}),
    "unknown option": ("clinic", ALL, {"colour": "red"}),
    "unknown group": ("clinic", {"scale": [27.5]}, {}),
    "group without features": ("clinic", {"blood-draw": []}, {}),
    "too many values": ("clinic", {"scales": [27.5, 3]}, {}),
    "no values": ("clinic", {"scales": []}, {}),
    "missing value": ("clinic", {"scales": [None], "interview": [None, 2]}, {}),
    "clamped": ("clinic", {"scales": [99.0], "cuff": [-4]}, {}),
    "text for a number": ("clinic", {"scales": ["wide"]}, {}),
    "boolean for a number": ("clinic", {"scales": [True]}, {}),
    "huge": ("clinic", {"scales": [1e300]}, {}),
    "deep list": ("clinic", {"scales": [[[27.5]]]}, {}),
    "same group again": ("clinic", [("scales", [20]), ("scales", [27.5])], {}),
    "unknown model": ("nobody", {"scales": [27.5]}, {}),
    "levels": ("text", {**TICKET, **BERTH, "home": ["town 1"]}, {"explain": "true"}),
    "unknown levels": ("text", {**TICKET, "berth": ["Atlantis", 4], "home": ["NA"]}, {}),
    "missing levels": ("text", {"ticket": [None, None], "berth": [None, None]}, {"policy": "arrived"}),
    "number for text": ("text", {"berth": [3, 17]}, {}),
    "text for a boolean": ("text", {"ticket": [7, "yes"]}, {}),
    "fraction for a level": ("text", {"berth": ["Rome", 17.5]}, {}),
    "classes": ("classes", {"colour": [0.1, -1, 2], "radar": [1.5]}, {"ranking": "true"}),
    "classes in rows": ("classes", {"radar": [[1.5], [-2], [0]], "shape": [[1], [2], [3]]}, {"ranking": "true"}),
    "counts": ("weights", {"form": [0.5, "north"], "visit": [1, 2]}, {"explain": "true", "policy": "arrived"}),
    "dates": ("dates", {"calendar": ["2021-05-17", 4], "clock": ["2021-05-17T09:30:00Z"], "meter": [0.1, 2]}, {}),
    "dates as seconds": ("dates", {"calendar": [1621209600, 4], "meter": [9.0, None]}, {"explain": "true"}),
    "no date": ("dates", {"calendar": ["soon", 4]}, {}),
}
"""Requests of every binding: model, values by group, options."""

GETS = """
/ /docs /openapi.json /livez /readyz /models /models/nobody /models/clinic@0 /models/clinic/plan /nowhere
/models/clinic/plan?budget=10&have=scales&rows=3 /models/clinic/plan?have=nobody /models/clinic/plan?budget=-1
/models/clinic/plan?budget= /models/clinic/plan?budget=1&budget=2 /models/clinic/plan?colour=red
/models/clinic/plan?have=scales,cuff /models/clinic/curve /models/clinic/curve?budget=1 /models/clinic/sample
/models/clinic/sample?seed=3 /models/clinic/sample?seed=x /models/clinic/shape?column=bmi
/models/clinic/shape?column=bmi&prefix=1 /models/clinic/shape?column=nobody /models/clinic/shape
/models/text/shape?column=port /models/text/sample /models/dates/sample /console/nowhere /sessions /predict
/predict?session=none /sessions/none/predict /stream /v2 /v2/health/live /v2/health/ready /v2/nowhere
/v2/models/nobody /v2/models/nobody/ready /v2/models/clinic/versions/1 /v2/models/clinic/versions/1/ready
/models/%63linic /models/clinic/ //models /?x=1 /livez?x=1 /models/clinic/../clinic
"""
"""Paths that are requested by GET; those of each model are added."""

OTHERS = """
HEAD /livez|HEAD /models|HEAD /|HEAD /nowhere|OPTIONS /predict|OPTIONS /v2|PUT /predict|DELETE /models
PATCH /sessions|DELETE /sessions/none|POST /livez|POST /models/clinic/reload|POST /models/nobody/reload|TRACE /livez
POST /sessions/none/groups|POST /sessions?model=clinic|POST /nowhere|get /livez|CONNECT /livez|POST /stream
"""
"""Requests by other methods, without a body."""

BODIES: list[bytes] = [
    b"", b" ", b"{", b"[]", b"null", b"7", b'"groups"', b"{}", b'{"groups": []}', b'{"groups": null}',
    b'{"groups": {}} x', b'{"groups": {"scales": 27.5}}', b'{"groups": {"scales": [NaN]}}',
    b'{"groups": {"scales": [1e999]}}', b'{"groups": {"scales": [27.5]}, "groups": {}}', b'{"rows": 1}',
    b'{"groups": {"scales": [27.5]}, "budget": null}', b'{"groups": {"scales": [27.5]}, "budget": "1"}',
    b'{"groups": {"scales": [27.5]}, "model": "clinic"}', b'{"groups": {"\xff": [1]}}', b"\xef\xbb\xbf{}",
    b'{"groups": {"scales": [27.5]}, "explain": 1}', b"[" * 3000, b'{"groups": {"scales": [%s1]}}' % (b"1," * 60_000),
]  # fmt: skip
"""Bodies of JSON for POST /predict."""

GOOD = b'{"groups": {"scales": [27.5]}}'

HEADERS = """
|Content-Type: text/plain|Content-Type: application/json; charset=utf-8|Content-Type: application/json; charset=latin-1
Content-Type: application/json~Accept: application/msgpack|Content-Type: application/json~Accept: text/html
Content-Type: application/json~Accept: */*
Content-Type: application/json~Accept: application/msgpack;q=0.1, application/json
Content-Type: application/json~Content-Encoding: gzip|Content-Type: application/json~Expect: 100-continue
Content-Type: application/json~Expect: tea|Content-Type: application/json~Request-Timeout-Ms: 0
Content-Type: application/json~Request-Timeout-Ms: soon|Content-Type: application/json~Request-Timeout-Ms: -1
Content-Type: application/json~grpc-timeout: 0m|Content-Type: application/json~grpc-timeout: 1H
Content-Type: application/json~grpc-timeout: 5|Content-Type: application/json~Origin: http://elsewhere.example
Content-Type: application/json~Origin: http://same|Content-Type: application/json~Connection: close
Content-Type: application/json~Upgrade: h2c~Connection: Upgrade
Content-Type: application/json~Authorization: Bearer none
Content-Type: application/json~traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
Content-Type: application/json~traceparent: none|Content-Type: application/json~X-Request-Id: mine
"""
"""Heads of a valid POST /predict: headers are separated by ~, requests by |."""

POST = b"POST /predict?model=clinic HTTP/1.1\r\nHost: same\r\nContent-Type: application/json\r\n"
LINES = b"POST /predict?model=clinic%s HTTP/1.1\r\nHost: same\r\nContent-Type: application/x-ndjson\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LINE = b'{"group": "scales", "values": [27.5], "took_ms": 4.1}\n'
END = b"0\r\n\r\n"

BYTES: dict[str, tuple[bytes, ...]] = {
    "no host": (b"GET /livez HTTP/1.1\r\n\r\n",),
    "two hosts": (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",),
    "HTTP/1.0": (b"GET /livez HTTP/1.0\r\n\r\n",),
    "HTTP/1.0 kept": (b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",),
    "HTTP/3.0": (b"GET /livez HTTP/3.0\r\nHost: a\r\n\r\n",),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",),
    "no path": (b"GET HTTP/1.1\r\nHost: a\r\n\r\n",),
    "absolute path": (b"GET http://same/livez HTTP/1.1\r\nHost: same\r\n\r\n",),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",),
    "line feeds": (b"GET /livez HTTP/1.1\nHost: a\n\n",),
    "empty line first": (b"\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n",),
    "space before colon": (b"GET /livez HTTP/1.1\r\nHost : a\r\n\r\n",),
    "folded header": (b"GET /livez HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",),
    "null in a header": (b"GET /livez HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",),
    "long head": (b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",),
    "long path": (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",),
    "head in parts": (b"GET /li", b"vez HTTP/1.1\r\nHo", b"st: a\r\n", b"\r\n"),
    "body in parts": (POST + b"Content-Length: 30\r\n\r\n", GOOD[:10], GOOD[10:]),
    "longer than stated": (POST + b"Content-Length: 29\r\n\r\n" + GOOD,),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n",),
    "length of text": (POST + b"Content-Length: x\r\n\r\n",),
    "two lengths": (POST + b"Content-Length: 30\r\nContent-Length: 31\r\n\r\n" + GOOD,),
    "same length twice": (POST + b"Content-Length: 30\r\nContent-Length: 30\r\n\r\n" + GOOD,),
    "too long": (POST + b"Content-Length: 99999999\r\n\r\n" + GOOD,),
    "length and chunks": (POST + b"Content-Length: 30\r\n" + CHUNKED + chunk(GOOD) + END,),
    "chunks": (POST + CHUNKED + chunk(GOOD[:9]), chunk(GOOD[9:]), END),
    "chunks with extension": (POST + CHUNKED + b"1e;x=y\r\n" + GOOD + b"\r\n" + END,),
    "chunks with trailer": (POST + CHUNKED + chunk(GOOD) + b"0\r\nX: 1\r\n\r\n",),
    "wrong chunk size": (POST + CHUNKED + b"zz\r\n" + GOOD,),
    "chunk that is longer": (POST + CHUNKED + b"5\r\n" + GOOD + b"\r\n" + END,),
    "gzip coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(GOOD) + END,),
    "identity coding": (POST + b"Transfer-Encoding: identity\r\n\r\n" + GOOD,),
    "body of GET": (b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",),
    "lines at once": (LINES % b"" + CHUNKED + chunk(LINE) + END,),
    "lines in parts": (LINES % b"" + CHUNKED + chunk(LINE[:20]), chunk(LINE[20:] + LINE[:5]), chunk(LINE[5:]), END),
    "lines until the deadline": (LINES % b"&deadline_ms=700" + CHUNKED + chunk(LINE),),
    "lines until the budget": (LINES % b"&budget=2" + CHUNKED + chunk(LINE),),
    "half a line at the deadline": (LINES % b"&deadline_ms=700" + CHUNKED + chunk(LINE + LINE[:9]),),
    "no line at the deadline": (LINES % b"&deadline_ms=300" + CHUNKED,),
    "deadline 0 before the lines": (LINES % b"&deadline_ms=0" + CHUNKED, chunk(LINE) + END),
    "invalid line": (LINES % b"" + CHUNKED + chunk(b"{\n" + LINE) + END,),
    "empty lines": (LINES % b"" + CHUNKED + chunk(b"\n\n" + LINE + b"\n") + END,),
    "line of another kind": (LINES % b"" + CHUNKED + chunk(b'{"type": "end"}\n') + END,),
    "line without end": (LINES % b"" + CHUNKED + chunk(LINE[:-1]) + END,),
    "error in the second line": (LINES % b"" + CHUNKED + chunk(LINE), chunk(LINE.replace(b"scales", b"x")), END),
    "lines with a length": (LINES % b"" + b"Content-Length: %d\r\n\r\n" % len(LINE) + LINE,),
    "no type": (b"POST /predict?model=clinic HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n" + GOOD,),
    "same option twice": (request("POST", "/predict?model=clinic&rows=1&rows=1", GOOD, f"Content-Type: {JSON}"),),
    "empty option": (request("POST", "/predict?model=clinic&rows=", GOOD, f"Content-Type: {JSON}"),),
    "no model": (request("POST", "/predict", GOOD, f"Content-Type: {JSON}"),),
    "option in query and body": (
        request("POST", "/predict?model=clinic&rows=1", b'{"groups": {}, "rows": 2}', f"Content-Type: {JSON}"),
    ),
}
"""Requests byte by byte, in parts with a pause between them."""

BEGIN = {"type": "begin", "id": 1, "model": "clinic"}
GROUP = {"type": "group", "id": 1, "group": "scales", "values": [27.5]}
STOP = {"type": "end", "id": 1}

MESSAGES: dict[str, list[Any]] = {
    "updates": [BEGIN | {"updates": True}, GROUP, GROUP | {"group": "cuff", "values": [88]}, STOP],
    "two at once": [BEGIN, BEGIN | {"id": "b"}, GROUP, GROUP | {"id": "b", "values": [20]}, STOP | {"id": "b"}, STOP],
    "same id again": [BEGIN, BEGIN, STOP, BEGIN],
    "group before begin": [GROUP],
    "end before begin": [STOP],
    "group after end": [BEGIN, STOP, GROUP],
    "end twice": [BEGIN, STOP, STOP],
    "no id": [{"type": "begin"}, {"type": "end"}],
    "id of another type": [BEGIN | {"id": 1.5}, BEGIN | {"id": None}, BEGIN | {"id": ""}, BEGIN | {"id": "x" * 129}],
    "unknown type": [{"type": "stop", "id": 1}, {"id": 1}, {"type": 7, "id": 1}],
    "unknown field": [BEGIN | {"colour": "red"}, STOP | {"budget": 1}],
    "wrong field": [BEGIN | {"rows": "1"}, BEGIN | {"budget": True}, BEGIN | {"explain": "true"}],
    "no model": [{"type": "begin", "id": 1}],
    "error, then answer": [BEGIN, GROUP | {"values": [1, 2]}, GROUP | {"group": "scale"}, GROUP, STOP],
    "took": [BEGIN, GROUP | {"took_ms": 2.5}, GROUP | {"took_ms": -1}, STOP],
    "no message": [7, [], None, "begin"],
    "trace": [BEGIN | {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, STOP],
    "budget is complete": [BEGIN | {"budget": 2, "updates": True}, GROUP, GROUP],
    "deadline expires": [BEGIN | {"deadline_ms": 700}, GROUP],
    "open at the close": [BEGIN, GROUP],
}
"""Messages on a WebSocket, in JSON and in MessagePack."""

FRAMES: dict[str, list[bytes]] = {
    "unmasked": [frame("{}", masked=False)],
    "reserved bit": [frame("{}", reserved=4)],
    "unknown opcode": [frame("", 3)],
    "unknown control": [frame("", 11)],
    "ping": [frame("are you there", PING)],
    "long ping": [frame("x" * 126, PING)],
    "ping in parts": [frame("x", PING, last=False)],
    "pong": [frame("x", 10)],
    "in parts": [frame(json.dumps(BEGIN)[:9], last=False), frame(json.dumps(BEGIN)[9:], 0), message(STOP)],
    "ping between parts": [frame("{", last=False), frame("", PING), frame("}", 0)],
    "part without a first": [frame("{}", 0)],
    "text between parts": [frame("{", last=False), frame("{}")],
    "no UTF-8": [frame(b"\xff\xfe")],
    "no JSON": [frame("{"), frame(""), frame('{"type": "begin", "type": "end", "id": 1}')],
    "no MessagePack": [frame(b"\xc1", BINARY), frame(b"", BINARY), frame(b"\x81", BINARY)],
    "packed values in text": [message(BEGIN), message(GROUP | {"dtype": "f4"})],
    "forms mixed": [message(BEGIN, packed=True), message(GROUP), message(STOP)],
    "packed values": [
        message(BEGIN, packed=True),
        message(GROUP | {"values": b"\x00\x00\xdc\x41", "dtype": "f4"}, packed=True),
        message(GROUP | {"group": "cuff", "values": b"\x00" * 7, "dtype": "f8"}, packed=True),
        message(GROUP | {"group": "cuff", "values": b"\x00" * 8, "dtype": "i8"}, packed=True),
        message(STOP, packed=True),
    ],
    "too large": [frame("x" * 1_100_000)],
    "close": [frame(b"\x03\xe8bye", CLOSE)],
    "close without a code": [frame(b"", CLOSE)],
    "close with half a code": [frame(b"\x03", CLOSE)],
    "close with code 1005": [frame(b"\x03\xed", CLOSE)],
    "close with code 4000": [frame(b"\x0f\xa0", CLOSE)],
    "close with an open prediction": [message(BEGIN), frame(b"\x03\xe8", CLOSE)],
    "message after close": [frame(b"\x03\xe8", CLOSE), message(BEGIN)],
}
"""Frames on a WebSocket."""

UPGRADES = {
    "no subprotocol": "",
    "another subprotocol": "Sec-WebSocket-Protocol: chat\r\n",
    "two subprotocols": "Sec-WebSocket-Protocol: chat, anytime.v1\r\n",
    "compression": "Sec-WebSocket-Protocol: anytime.v1\r\nSec-WebSocket-Extensions: permessage-deflate\r\n",
    "own origin": "Sec-WebSocket-Protocol: anytime.v1\r\nOrigin: http://same\r\n",
    "foreign origin": "Sec-WebSocket-Protocol: anytime.v1\r\nOrigin: http://elsewhere.example\r\n",
    "another version": "Sec-WebSocket-Protocol: anytime.v1\r\nSec-WebSocket-Version: 8\r\n",
    "a key": "Sec-WebSocket-Protocol: anytime.v1, anytime.key.none\r\n",
}
"""Further headers of the handshake."""

PATIENT = {"ANYTIME_MAX_LATENESS_MS": "60000", "ANYTIME_MAX_SOLVE_MS": "60000", "ANYTIME_SESSION_TTL_S": "3600"}
"""Settings of both servers: neither is overloaded on a busy machine, and no session expires."""

STRICT = {
    "ANYTIME_API_KEYS": "reader,admin:owner",
    "ANYTIME_MAX_JSON_BYTES": "400",
    "ANYTIME_MAX_BODY_BYTES": "800",
    "ANYTIME_MAX_JSON_VALUES": "20",
    "ANYTIME_MAX_ROWS": "3",
    "ANYTIME_MAX_SESSIONS": "2",
    "ANYTIME_MAX_HEADER_BYTES": "600",
    "ANYTIME_HEADER_TIMEOUT_S": "0.5",
    "ANYTIME_BODY_TIMEOUT_S": "0.5",
    "ANYTIME_IDLE_TIMEOUT_S": "1",
    "ANYTIME_MAX_DEADLINE_MS": "5000",
    "ANYTIME_MAX_SHARE_PER_KEY": "1",
}
"""Settings of a second server: keys and small limits."""


class Server:
    """`anytime serve` in a process of its own."""

    def __init__(self, folder: Path, models: list[str], **settings: str) -> None:
        words = [sys.executable, "-P", "-m", "anytime", "serve", "--port", "0", *models]
        self.process = subprocess.Popen(
            words, cwd=folder, env=os.environ | PATIENT | settings, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self.port = 0
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"serving .* on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        self._reader = Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        assert self.port, f"the server does not start: {''.join(self.lines)}"

    def stop(self) -> dict[str, Any]:
        """Terminate the server; return its exit code and what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return {"exit": code, "lines": self.lines}


def pairs(groups: Any) -> list[tuple[str, Any]]:
    return list(groups.items()) if isinstance(groups, Mapping) else groups


def posted(port: int, form: str, model: str, groups: Any, options: dict[str, Any], *headers: str) -> list[Any]:
    """Predict by one POST: options are in the query, in MessagePack in the body."""
    if form == NDJSON:
        body = b"".join(json.dumps({"group": name, "values": each}).encode() + b"\n" for name, each in pairs(groups))
    elif form == MSGPACK:
        body = msgspec.msgpack.encode({"groups": dict(pairs(groups))} | typed(options))
        options = {}
    else:
        values = ", ".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in pairs(groups))
        body = f'{{"groups": {{{values}}}}}'.encode()
    path = f"/predict?{urlencode({'model': model} | options)}"
    return exchange(port, request("POST", path, body, f"Content-Type: {form}", *headers))


def typed(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as fields of a message."""
    return {name: True if value == "true" else value for name, value in options.items()}


def by_session(port: int, model: str, groups: Any, options: dict[str, Any], *headers: str) -> list[Any]:
    """Begin a session, add each group, predict and end it."""
    more = (f"Content-Type: {JSON}", *headers)
    fields = {"model": model} | ({"rows": options["rows"]} if "rows" in options else {})
    begun = exchange(port, request("POST", "/sessions", json.dumps(fields).encode(), *more))
    if not isinstance(begun[0], dict) or "id" not in begun[0]["body"]:
        return begun
    path = f"/sessions/{begun[0]['body']['id']}"
    bodies = [json.dumps({name: values}).encode() for name, values in pairs(groups)]
    query = urlencode({name: value for name, value in options.items() if name != "rows"})
    requests = [
        *(request("POST", f"{path}/groups", body, *more) for body in bodies),
        request("GET", f"{path}/predict?{query}" if query else f"{path}/predict", None, *headers),
        request("DELETE", path, None, *headers),
        request("GET", f"{path}/predict", None, *headers),
    ]
    return [begun, *(exchange(port, each) for each in requests)]


def inferred(port: int, model: str, groups: Any, options: dict[str, Any]) -> list[Any]:
    """Predict by the Open Inference Protocol."""
    inputs = [tensor for name, values in pairs(groups) for tensor in tensors(name, values)]
    body = json.dumps({"id": "mine", "inputs": inputs, "parameters": typed(options)}).encode()
    return exchange(port, request("POST", f"/v2/models/{model}/infer", body, f"Content-Type: {JSON}"))


def tensors(name: str, values: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the inputs of a group: its numbers, and each column of text."""
    rows = values if values and isinstance(values[0], list) else [values]
    texts = TEXTS.get(name, {})
    numbers = [[value for place, value in enumerate(row) if place not in texts] for row in rows]
    if numbers[0] or not texts:
        yield {
            "name": name,
            "shape": [len(rows), len(numbers[0])],
            "datatype": "FP64",
            "data": [each for row in numbers for each in row],
        }
    for place, column in texts.items():
        data = [row[place] for row in rows]
        yield {"name": f"{name}:{column}", "shape": [len(rows), 1], "datatype": "BYTES", "data": data}


def streamed(port: int, packed: bool, model: str, groups: Any, options: dict[str, Any]) -> list[Any]:
    """Predict over a WebSocket."""
    messages = [
        {"type": "begin", "id": 1, "model": model} | typed(options),
        *({"type": "group", "id": 1, "group": name, "values": values} for name, values in pairs(groups)),
        STOP,
    ]
    return stream(port, *(message(each, packed=packed) for each in messages), last=LAST | {"model": "clinic"})


def said(port: int, packed: bool, messages: list[Any], wait: Any) -> list[Any]:
    return stream(
        port, *(message(each, packed=packed) for each in messages), last=LAST | {"model": "clinic"}, wait=wait
    )


def open_cases(port: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the exchanges with the first server: its name, and what records it."""
    versions = {each["name"]: each["version"] for each in exchange(port, request("GET", "/models"))[0]["body"]}
    bindings: dict[str, Callable[..., list[Any]]] = {
        "POST JSON": partial(posted, port, JSON),
        "POST MessagePack": partial(posted, port, MSGPACK),
        "POST lines": partial(posted, port, NDJSON),
        "session": partial(by_session, port),
        "OIP": partial(inferred, port),
        "stream JSON": partial(streamed, port, False),
        "stream MessagePack": partial(streamed, port, True),
    }
    for name, case in CASES.items():
        for binding, predict in bindings.items():
            yield f"{binding}/{name}", partial(predict, *case)
    each_model = [f"{path}/{name}" for name in versions for path in ("/models", "/v2/models")]
    each_model += [f"/models/{name}/{more}" for name in versions for more in ("plan", "curve")]
    for path in [*GETS.split(), *each_model]:
        yield f"GET/{path}", partial(exchange, port, request("GET", path))
    for version in ("clinic@VERSION", "text@VERSION"):
        path = version.replace("VERSION", versions[version.partition("@")[0]])
        yield f"GET/{version}", partial(exchange, port, request("GET", f"/models/{path}"))
        yield f"POST JSON/{version}", partial(posted, port, JSON, path, {}, {})
        infer = f"/v2/models/{path.replace('@', '/versions/')}/infer"
        yield f"OIP/{version}", partial(exchange, port, request("POST", infer, b'{"inputs": []}'))
    for line in OTHERS.replace("\n", "|").strip("|").split("|"):
        yield (f"other methods/{line}", partial(exchange, port, other(line)))
    for place, body in enumerate(BODIES):
        for path in ("/predict?model=clinic", "/sessions", "/v2/models/clinic/infer"):
            sent = request("POST", path, body, f"Content-Type: {JSON}")
            yield f"bodies of {path.split('?')[0]}/{place} {body[:40]!r}", partial(exchange, port, sent)
    for line in HEADERS.strip("\n").replace("\n", "|").split("|"):
        sent = request("POST", "/predict?model=clinic", GOOD, *filter(None, line.split("~")))
        yield f"headers/{line}", partial(exchange, port, sent, answers=1 + ("100-continue" in line))
    for name, parts in BYTES.items():
        yield f"bytes/{name}", partial(exchange, port, *parts)
    two = request("GET", "/livez") + request("POST", "/predict?model=clinic", GOOD, f"Content-Type: {JSON}")
    yield "bytes/two requests at once", partial(exchange, port, two + request("GET", "/nowhere"), answers=3)
    for name, messages in MESSAGES.items():
        wait = 1 if name == "deadline expires" else None
        for packed in (False, True):
            yield f"messages {'MessagePack' if packed else 'JSON'}/{name}", partial(said, port, packed, messages, wait)
    last = LAST | {"model": "clinic"}
    for name, frames in FRAMES.items():
        yield f"frames/{name}", partial(stream, port, *frames, last=last)
    for name, more in UPGRADES.items():
        yield f"upgrades/{name}", partial(stream, port, more=more, last=last)
    for path in ("/stream?x=1", "/predict", "/nowhere"):
        yield f"upgrades/{path}", partial(stream, port, path=path, last=last)
    yield "metrics/at the end", partial(metrics, port)


def other(line: str) -> bytes:
    method, path = line.split(" ")
    return request(method, path, b"" if method == "POST" else None)


def metrics(port: int) -> Any:
    """Return the metrics when all connections but this one have ended."""
    give_up = time.monotonic() + WAIT_S
    while True:
        found = exchange(port, request("GET", "/metrics"))
        if "anytime_connections 1.0" in str(found) or time.monotonic() > give_up:
            return found[0]["status"], found[0]["body"].split("\n")


def strict_cases(port: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the exchanges with the second server, which has keys and small limits."""
    kind, reader, owner = f"Content-Type: {JSON}", "Authorization: Bearer reader", "Authorization: Bearer owner"
    for key in ("", "Authorization: Bearer none", "Authorization: Basic eDp5", "Authorization: Bearer", reader, owner):
        for method, path in (
            ("GET", "/models"),
            ("GET", "/metrics"),
            ("GET", "/livez"),
            ("POST", "/models/clinic/reload"),
        ):
            yield (
                f"keys/{key} {method} {path}",
                partial(exchange, port, request(method, path, None, *filter(None, [key]))),
            )
        lines = ["Sec-WebSocket-Protocol: anytime.v1", *filter(None, [key]), ""]
        yield f"keys/{key} stream", partial(stream, port, more="\r\n".join(lines))
    for key in ("reader", "none", "a+b", ""):
        line = f"Sec-WebSocket-Protocol: anytime.v1, anytime.key.{key}\r\n"
        yield f"keys/subprotocol {key}", partial(stream, port, more=line)
    for size in (19, 20, 21, 300, 900):
        body = b'{"groups": {"cholesterol": [%s]}}' % b",".join([b"1"] * size)
        yield f"limits/{size} values", partial(exchange, port, request("POST", "/predict", body, kind, reader))
        packed = msgspec.msgpack.encode({"groups": {"scales": {"dtype": "f8", "values": bytes(8 * size)}}})
        sent = request("POST", "/predict", packed, f"Content-Type: {MSGPACK}", reader)
        yield f"limits/{size} packed values", partial(exchange, port, sent)
    for name, rows in (("3 rows", 3), ("4 rows", 4)):
        yield f"limits/{name}", partial(posted, port, JSON, "clinic", {"scales": [[1]] * rows}, {}, reader)
        yield (
            f"limits/{name} of a session",
            partial(by_session, port, "clinic", {"scales": [[1]] * rows}, {"rows": rows}, reader),
        )
    begun = f"POST /predict HTTP/1.1\r\nHost: same\r\n{kind}\r\n{reader}\r\n".encode()
    more = f"Sec-WebSocket-Protocol: anytime.v1\r\n{reader}\r\n"
    many = {"type": "group", "id": 1, "group": "scales", "values": [1] * 30}
    cases: dict[str, Callable[[], Any]] = {
        "limits/deadline": partial(posted, port, JSON, "clinic", {"scales": [1]}, {"deadline_ms": 60_000}, reader),
        **{f"limits/session {n}": partial(exchange, port, request("POST", "/sessions", b"", reader)) for n in range(3)},
        "limits/head": partial(exchange, port, request("GET", "/livez", None, "X: " + "x" * 600)),
        "timeouts/head": partial(exchange, port, b"GET /livez HTTP/1.1\r\n"),
        "timeouts/body": partial(exchange, port, begun + b"Content-Length: 30\r\n\r\n{"),
        "timeouts/chunks": partial(exchange, port, begun + CHUNKED + chunk(b"{")),
        "timeouts/idle": lambda: Connection(port).end(),
        "timeouts/idle stream": partial(stream, port, more=more, last={"type": "pause"}),
        "limits/large message": partial(stream, port, frame("x" * 500), more=more),
        "limits/large packed message": partial(stream, port, frame(b"x" * 900, BINARY), more=more),
        "limits/values of a message": partial(
            stream, port, message({"type": "begin", "id": 1}), message(many), more=more
        ),
    }
    yield from cases.items()


def stopped(server: Server) -> dict[str, Any]:
    """Stop a server with an open prediction of each kind and an idle connection; return how each ends."""
    idle, lines = Connection(server.port), Connection(server.port)
    idle.send([request("GET", "/livez")])
    idle.response()
    lines.send([LINES % b"" + CHUNKED + chunk(LINE)])
    socket = Connection(server.port)
    socket.send([b"GET /stream HTTP/1.1\r\nHost: same\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                 b"Sec-WebSocket-Protocol: anytime.v1\r\n\r\n"])  # fmt: skip
    socket.response()
    socket.send([message(BEGIN | {"updates": True}), message(GROUP), message(LAST | {"model": "clinic"})])
    found: dict[str, Any] = {"before": socket.frames("last")}
    time.sleep(0.2)  # the lines were sent before the messages that are answered; this is their time to be read
    server.process.send_signal(signal.SIGTERM)
    found["stream"] = socket.frames()
    with contextlib.suppress(Exception):
        found["lines"] = lines.response()
    return found | {"lines end": lines.end(), "idle": idle.end(), "server": server.stop()}


def train(inputs: Path, folder: Path) -> list[str]:
    """Train the served models; return their files."""
    for task in tasks(inputs):
        if task.name in TRAINED:
            place = inputs / task.name
            held = str(place / f"held{task.suffix}")
            words = ["train", str(place / f"train{task.suffix}"), "--groups", str(place / "groups.json"), *task.words]
            words += [*TRAINED[task.name].format(held=held).split(), "--out", f"{task.name}.safetensors"]
            trained = command(words)
            assert trained["exit"] == 0, trained
    return [f"{name}.safetensors" for name in TRAINED]


def recorded(cases: Iterable[tuple[str, Callable[[], Any]]], match: str) -> dict[str, Any]:
    return {f"service/{name}": call() for name, call in cases if match in f"service/{name}"}


def record(inputs: Path, match: str) -> dict[str, Any]:
    """Return the exchanges by name, of those whose names contain a text."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        models = train(inputs, Path(name))
        found = {}
        server = Server(Path(name), models)
        try:
            found = recorded(open_cases(server.port), match)
            found["service/stopping/open predictions"] = stopped(server)
        finally:
            server.process.kill()
        server = Server(Path(name), models[:1], **STRICT)
        try:
            found |= recorded(strict_cases(server.port), match)
            found["service/stopping/idle"] = server.stop()
        finally:
            server.process.kill()
        return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(record(Path(sys.argv[1]), sys.argv[5]), default=repr), encoding="utf-8")
