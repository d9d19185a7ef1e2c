"""`POST /predict`: what it accepts and refuses, and errors of every route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from time import sleep
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.limits.turns import AT_ONCE
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import ROUTES
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from service.serving import (
    BASE_RATE,
    LIMITS,
    LINES,
    VALUES,
    Collecting,
    Running,
    chunk,
    expected,
    lines_of,
    logged,
    problem_in,
    run_service,
    running,
    small_model,
    timeless,
)
from waiting import until, until_async

SETTINGS = LIMITS.model_copy(update={"max_deadline_ms": 3_600_000})


@pytest.mark.parametrize("kind", [None, "application/json", "Application/JSON; charset=utf-8"])
def test_json_is_read_with_and_without_a_content_type(service: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert httpx.post(f"{service.url}/predict", content=b'{"groups": {}}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"budget": "-1"}, "budget"),
        ({"budget": "nan"}, "budget"),
        ({"budget": "inf"}, "budget"),
        ({"budget": "cheap"}, "budget"),
        ({"budget": "1_0"}, "budget"),
        ({"budget": "0x10"}, "budget"),
        ({"budget": "\u0665"}, "budget"),
        ({"budget": ["1", "2"]}, "budget"),
        ({"deadline_ms": "-0.1"}, "deadline_ms"),
        ({"deadline_ms": "NaN"}, "deadline_ms"),
        ({"deadline_ms": "soon"}, "deadline_ms"),
        ({"policy": "better"}, "policy"),
        ({"overload": "panic"}, "overload"),
        ({"deadline": "10"}, "deadline"),
        ({"rows": "0"}, "rows"),
        ({"rows": "51"}, "rows"),
        ({"rows": "1.5"}, "rows"),
        ({"rows": "9" * 5000}, "rows"),
    ],
)
def test_a_parameter_that_cannot_be_names_itself(service: Running, parameters: dict[str, Any], field: str) -> None:
    assert assert_problem(service, service.post({"groups": VALUES}, **parameters), 422)["field"] == field


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        (b"", 400, None, "not JSON"),
        (b"{", 400, None, "not JSON"),
        (b"\xff\xfe", 400, None, "not JSON"),
        (b'{"groups": {"\xff": [1]}}', 400, None, "not JSON"),
        (b'{"groups": {"speed": [NaN]}}', 400, None, "not JSON"),
        (b'{"groups": {"speed": [1,,2]}}', 400, None, "not JSON"),
        (b'{"groups": {"speed": ' + b"[" * 9000 + b"]" * 9000 + b"}}", 400, None, "nested"),
        (b"[1, 2]", 400, None, "expected `object`"),
        (b'{"group": {}}', 400, None, "unknown field `group`"),
        (b"{}", 400, None, "missing required field `groups`"),
        (b'{"groups": [1]}', 400, "groups", "expected `object`"),
        (b'{"groups": {}, "rows": 1.5}', 400, "rows", "expected `int"),
        (b'{"groups": {}, "rows": 0}', 400, "rows", ">= 1"),
        (b'{"groups": {}, "rows": 51}', 422, "rows", "expected 1 to 50"),
        (b'{"groups": {"sped": [1]}}', 422, "groups.sped", "did you mean 'speed'"),
        (b'{"groups": {"blood": [1]}}', 422, "groups.blood", "has no features"),
        (b'{"groups": {"speed": [1, 2]}}', 422, "groups.speed", "expected 1 x 1 values"),
        (b'{"groups": {"speed": 1}}', 422, "groups.speed", "expected `array`"),
        (b'{"groups": {"speed": {"dtype": "f8", "values": "AAAAAAAA8D8="}}}', 422, "groups.speed", "expected `array`"),
        (b'{"groups": {"hog": [1, "two"]}}', 422, "groups.hog[1]", "column 'h1' has 'two'; expected a number"),
        (b'{"groups": {"hog": [[1, 2], [3]]}}', 422, "groups.hog", "ragged"),
        (b'{"groups": {"hog": [1, 1e999]}}', 422, "groups.hog[1]", "out of range"),
    ],
)
def test_a_body_that_cannot_be_names_the_place(
    service: Running, body: bytes, status: int, field: str | None, words: str
) -> None:
    problem = assert_problem(service, httpx.post(f"{service.url}/predict", content=body), status)
    assert (problem.get("field"), words in problem["detail"]) == (field, True)


def test_a_prediction_that_overflows_is_refused_not_sent_as_null(service: Running, model: Model) -> None:
    replies = []
    for size in (1.7e308, 1e100):
        values = (size * np.sign(model.prefixes.coef(3)[:, 0])).tolist()
        replies.append(service.post({"groups": {"speed": values[:1], "hog": values[1:3], "lab": values[3:]}}))
    assert "beyond 1e+100" in assert_problem(service, replies[0], 422)["detail"]
    assert np.isfinite(replies[1].json()["prediction"])


@pytest.mark.parametrize("headers", [{"content-type": "text/csv"}, {"content-encoding": "gzip"}])
def test_another_form_of_body_is_415(service: Running, headers: dict[str, str]) -> None:
    assert_problem(service, httpx.post(f"{service.url}/predict", content=b"{}", headers=headers), 415)


@pytest.mark.parametrize("size", [100_001, 150_000, 3_000_000])
def test_a_body_above_the_limit_is_413_however_it_comes(service: Running, size: int) -> None:
    with service.connect() as announced:
        announced.head(length=size)
        status, headers, _ = announced.response()
        assert (status, headers["connection"]) == (413, "close")
    with service.connect() as chunked:
        chunked.head()
        chunked.send(chunk(b" " * 100_001))
        assert chunked.response()[0] == 413


def test_a_client_goes_on_after_a_body_above_the_limit(service: Running) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for content in (b" " * 150_000, iter([b" " * 1_000] * 150)):
            assert_problem(service, client.post("/predict", content=content), 413)
        assert client.post("/predict", json={"groups": {}}).status_code == 200


def test_paths_and_methods_that_are_not_there_are_problems_too(service: Running) -> None:
    assert_problem(service, service.get("/nowhere"), 404)
    for path, allowed in {
        "/models": "GET, HEAD",
        "/predict": "GET, HEAD, POST",
        "/sessions/none": "DELETE",
        "/stream": "GET, HEAD",
    }.items():
        response = httpx.patch(service.url + path)
        assert f"allowed: {allowed}" in assert_problem(service, response, 405)["detail"]
        assert response.headers["allow"] == allowed


async def test_the_methods_of_a_route_that_a_program_adds_are_those_of_its_405() -> None:
    app = create_app(ModelRegistry.of([small_model()]), LIMITS)
    app.add_api_route("/own", lambda: None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        response = await client.patch("/own")
    assert (response.status_code, response.headers["allow"]) == (405, "GET")


def test_with_several_models_a_request_names_one(several: Running) -> None:
    assert assert_problem(several, several.post({"groups": VALUES}), 422)["field"] == "model"


def assert_problem(service: Running, response: httpx.Response, status: int) -> dict[str, Any]:
    """The response is a problem of that status, and the service still answers; return the problem."""
    problem = problem_in(response, status)
    assert problem.keys() - {"field"} == {"type", "title", "status", "detail"}
    assert problem["status"] == status
    assert service.post({"groups": {}}, model=service.get("/models").json()[0]["name"]).status_code == 200
    return problem


def test_a_redirect_trusts_no_header_and_keeps_the_prefix(service: Running) -> None:
    headers = {"Host": "localhost", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"}
    for path, location in (
        ("/models/", "../models"),
        ("/models/brake/?a=b", "../brake?a=b"),
        ("/v2/", "../v2"),
        ("/predict/", "../predict"),
    ):
        response = httpx.request("POST" if "predict" in path else "GET", f"{service.url}{path}", headers=headers)
        assert (response.status_code, response.headers["location"]) == (307, location)
        assert response.url.join(location).path == path.partition("?")[0].removesuffix("/")
    for path in ("/nothing/", "//evil.example/"):
        assert httpx.get(service.url + path).status_code == 404


@pytest.mark.parametrize("path", sorted({row.path for row in ROUTES if row.method == "GET" and "{" not in row.path}))
def test_head_is_answered_like_get_without_a_body(service: Running, path: str) -> None:
    got, asked = (httpx.request(method, f"{service.url}{path}") for method in ("GET", "HEAD"))
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers.get("content-type") == got.headers.get("content-type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/brake/config", 404),
        ("POST", "/v2/repository/index", 404),
        ("GET", "/v2/models/brake/infer", 405),
        ("GET", "/v2/models/nowhere", 404),
        ("POST", "/v2/models/brake/infer", 400),
        ("GET", "/v2/health/live?" + "x" * 20_000, 431),
    ],
)
def test_every_error_of_the_open_inference_protocol_has_its_field(
    service: Running, method: str, path: str, status: int
) -> None:
    response = httpx.request(method, f"{service.url}{path}")
    assert response.status_code == status
    assert response.json()["error"] == response.json()["detail"]


# JSON, MessagePack and packed values in, JSON or MessagePack out.


DTYPE_TWICE = b"\x83\xa5dtype\xa2f8\xa5dtype\xa2f4\xa6values\xc4\x10" + bytes(16)


def posted(
    service: Running, content: bytes, kind: str = MSGPACK.media_type, accept: str = "", **query: Any
) -> httpx.Response:
    headers = {"content-type": kind, "accept": accept}
    return httpx.post(f"{service.url}/predict", content=content, headers=headers, params=query, timeout=60)


def read(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    decoder: Any = msgspec.json if response.headers["content-type"] == JSON.media_type else msgspec.msgpack
    answer: dict[str, Any] = decoder.decode(response.content)
    return answer


@pytest.mark.parametrize("kind", [MSGPACK.media_type, "application/x-msgpack", "application/vnd.msgpack; version=5"])
def test_a_body_of_messagepack_is_answered_in_messagepack(service: Running, model: Model, kind: str) -> None:
    response = posted(service, MSGPACK.encode({"groups": VALUES}), kind)
    assert response.headers["content-type"] == MSGPACK.media_type
    assert timeless(read(response)) == expected(model, VALUES)


@pytest.mark.parametrize(
    ("accept", "kind", "answered"),
    [
        ("", JSON.media_type, JSON.media_type),
        ("", MSGPACK.media_type, MSGPACK.media_type),
        ("*/*", MSGPACK.media_type, MSGPACK.media_type),
        (MSGPACK.media_type, JSON.media_type, MSGPACK.media_type),
        (JSON.media_type, MSGPACK.media_type, JSON.media_type),
        ("text/html, Application/MsgPack;q=0.9, */*;q=0.1", JSON.media_type, MSGPACK.media_type),
        (f"{JSON.media_type}, {MSGPACK.media_type}", MSGPACK.media_type, JSON.media_type),
        (MSGPACK.media_type, "application/x-ndjson", MSGPACK.media_type),
        ("text/csv", JSON.media_type, JSON.media_type),
    ],
)
def test_the_answer_is_in_the_form_that_is_accepted_else_in_that_of_the_body(
    service: Running, accept: str, kind: str, answered: str
) -> None:
    body = MSGPACK.encode({"groups": {}}) if kind == MSGPACK.media_type else b"" if "nd" in kind else b'{"groups": {}}'
    response = posted(service, body, kind, accept)
    assert response.headers["content-type"] == answered
    assert read(response)["prediction"] == BASE_RATE


@pytest.mark.parametrize(
    ("groups", "status", "field", "words"),
    [
        ({"hog": {"dtype": "f8", "values": b"x" * 24}}, 422, "groups.hog", "16 bytes each"),
        ({"hog": {"dtype": "f8", "values": b""}}, 422, "groups.hog", "expected 1 x 2"),
        ({"hog": {"dtype": "f2", "values": b"x" * 4}}, 422, "groups.hog.dtype", "f2"),
        ({"hog": {"dtype": "f8"}}, 422, "groups.hog", "missing required field `values`"),
        ({"hog": {"values": b"x" * 16}}, 422, "groups.hog", "missing required field `dtype`"),
        ({"hog": {"values": b"", "dtype": "f8", "rows": 1}}, 422, "groups.hog", "unknown field"),
        ({"hog": b"x" * 16}, 422, "groups.hog", "got `bytes`"),
        ({"hog": {"dtype": "f8", "values": [1.0, 2.0]}}, 422, "groups.hog.values", "expected `bytes`"),
        ({"hog": [1.0, float("inf")]}, 422, "groups.hog", "infinite"),
        ({"hog": {"dtype": "f8", "values": np.array([-np.inf, 1.0]).tobytes()}}, 422, "groups.hog", "infinite"),
        ({"none": {"dtype": "f8", "values": b"x" * 8}}, 422, "groups.none", "there is no group"),
        ({"hog": {"dtype": "f4", "values": bytes(8 * 51)}}, 422, "rows", "1 to 50"),
        ({1: [1.0]}, 400, "groups", "expected `str`"),
        (b"\x81\xa6groups\x81\xa3hog" + DTYPE_TWICE, 422, "groups.hog", "a key more than once"),
    ],
)
def test_packed_values_that_cannot_be_name_the_place(
    service: Running, groups: Any, status: int, field: str, words: str
) -> None:
    content = groups if isinstance(groups, bytes) else MSGPACK.encode({"groups": groups})
    problem = assert_problem(service, posted(service, content), status)
    assert (problem.get("field"), words in problem["detail"]) == (field, True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x91" * 9_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc0",
        b"\x80\x80",
        b'{"groups": {}}',
        b"\x81\xa6groups\x81\xa3hog\x91\xa1\xff",  # text that is not UTF-8
    ],
)
def test_a_body_that_is_not_messagepack_is_told(service: Running, content: bytes) -> None:
    with logged() as records:
        problem_in(posted(service, content, accept=MSGPACK.media_type), 400)
    assert not records


# Line by line: each group counts when it arrives, and the answer need not wait for the end.


AS_LINES = {"content-type": LINES}
PLAIN_SETTINGS = Settings(port=0)
OF = {name: lines_of({name: values})[:-1] for name, values in VALUES.items()}


@pytest.mark.parametrize("kind", [LINES, "application/jsonl", "Application/X-NDJSON; charset=utf-8"])
def test_lines_are_answered_like_a_body_that_came_whole(service: Running, model: Model, kind: str) -> None:
    response = httpx.post(f"{service.url}/predict", content=b"\n".join(OF.values()), headers={"content-type": kind})
    assert timeless(response.json()) == expected(model, VALUES)
    assert response.json()["reason"] == "complete"


def test_each_line_counts_when_it_comes_and_the_deadline_does_not_wait_for_the_next(
    service: Running, model: Model
) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=500", content_type=LINES)
        for name in ("speed", "hog"):
            connection.send(chunk(OF[name] + b"\n"))
            sleep(0.01)
        connection.send(chunk(OF["lab"][:10]))
        _, _, answer = connection.response()
        assert (answer["reason"], answer["complete"], answer["missing"]) == ("deadline", False, ["lab"])
        assert timeless(answer) == expected(model, {name: VALUES[name] for name in ("speed", "hog")})
        connection.send(chunk(OF["lab"][10:]) + b"0\r\n\r\n")
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"]) + b"0\r\n\r\n")
        assert connection.response()[2]["groups"] == ["speed"], "the connection serves the next request"


def test_the_line_that_completes_the_budgets_prefix_brings_the_answer(service: Running) -> None:
    with service.connect() as connection:
        connection.head("budget=5", content_type=LINES)
        connection.send(chunk(OF["hog"] + b"\n") + chunk(OF["speed"] + b"\n"))
        answer = connection.response()[2]
        assert (answer["reason"], answer["groups"]) == ("budget", ["speed", "hog"])


def test_lines_may_be_split_across_chunks_anywhere(service: Running, model: Model) -> None:
    content = b"\n" + OF["hog"] + b"\r\n \n" + OF["speed"] + b"\n"
    reported = expected(model, {name: VALUES[name] for name in ("speed", "hog")})
    with service.connect() as connection:
        for at in range(1, len(content)):
            connection.head(content_type=LINES)
            for piece in (content[:at], content[at:]):
                connection.send(chunk(piece))
            connection.send(b"0\r\n\r\n")
            assert timeless(connection.response()[2]) == reported, at
        connection.head(content_type=LINES)
        connection.send(b"".join(chunk(content[i : i + 1]) for i in range(len(content))) + b"0\r\n\r\n")
        assert timeless(connection.response()[2]) == reported


@pytest.mark.parametrize(
    ("line", "status", "field", "words"),
    [
        (b"{", 400, None, "line 3 is not JSON"),
        (b"\xff", 400, None, "line 3 is not JSON"),
        (b"[" * 9_000, 400, None, "line 3"),
        (b"[]", 400, None, "line 3: expected `object`"),
        (b'{"group": "hog"}', 400, None, "missing required field `values`"),
        (b'{"groups": {"hog": [1, 2]}}', 400, None, "unknown field `groups`"),
        (
            b'{"group": "hog", "values": [1, "x"]}',
            422,
            "groups.hog[1]",
            "line 3: values of group 'hog': column 'h1' has 'x'",
        ),
        (b'{"group": "hog", "values": [1, 2], "took_ms": -1}', 400, "took_ms", ">= 0"),
        (b'{"group": "hog", "values": [1]}', 422, "groups.hog", "line 3: values of group 'hog' are 1 x 1"),
        (b'{"group": "hag", "values": [1]}', 422, "groups.hag", "line 3: there is no group 'hag'"),
        (b'{"group": "blood", "values": []}', 422, "groups.blood", "line 3"),
        (b'{"group": "hog", "values": [[1, 2], [3]]}', 422, "groups.hog", "line 3"),
        (OF["hog"] + OF["lab"], 400, None, "line 3 is not JSON"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_line_that_cannot_be_is_a_problem_that_names_it(
    service: Running, line: bytes, status: int, field: str | None, words: str, last: bool
) -> None:
    with logged() as records:
        response = service.post_to(
            "/predict", content=OF["speed"] + b"\n\n" + line + (b"" if last else b"\n" + OF["lab"]), headers=AS_LINES
        )
    problem = problem_in(response, status)
    assert problem.get("field") == field, problem
    assert (words in problem["detail"], "line 3" in problem["detail"]) == (True, True), problem
    assert not records
    until(lambda: service.metric("anytime_open_predictions") == 0)


def test_a_long_line_counts_as_stored_while_it_waits_for_its_turn(model: Model) -> None:
    app = create_app(ModelRegistry.of([model]), PLAIN_SETTINGS)
    core, stored, long = app.state.service, list[int](), OF["hog"].ljust(2 * AT_ONCE) + b"\n"
    turn = core.turns.turn

    async def observed(*size: int) -> None:  # without a size: lines that have used their time in a turn
        stored.extend(core.memory.bytes - each for each in size)
        await turn(*size)

    core.turns.turn = observed
    with running(app, PLAIN_SETTINGS) as service:
        assert service.post_to("/predict", content=2 * long, headers=AS_LINES).status_code == 200
        until(lambda: core.memory.bytes == 0)
    assert len(stored) == 3, "two lines, and what follows them"
    assert min(stored) >= 0


def test_a_bad_line_is_told_at_once_and_the_connection_lives(service: Running) -> None:
    with service.connect() as connection:
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"] + b"\nnonsense\n"))
        assert connection.response()[0] == 400
        connection.send(chunk(OF["hog"]) + b"0\r\n\r\n")
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"]) + b"0\r\n\r\n")
        assert connection.response()[0] == 200


def test_lines_above_the_limit_are_a_body_above_the_limit(service: Running) -> None:
    with service.connect() as connection:
        connection.head(content_type=LINES)
        connection.send(chunk(b" " * 50_000 + b"\n") * 2 + chunk(b"\n" * 5))
        assert connection.response()[0] == 413


def test_more_lines_than_are_read_at_a_time_leave_the_deadline_its_turn(service: Running) -> None:
    content = (OF["speed"] + b"\n") * 2_000
    assert service.post_to("/predict", content=content, headers=AS_LINES).json()["replaced"] == ["speed"]
    reply = service.post_to("/predict?deadline_ms=1", content=content, headers=AS_LINES)
    assert reply.json()["reason"] in ("deadline", "end")


def test_aiohttp_sees_the_answer_while_it_streams(service: Running) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp")

    async def lines(answered: asyncio.Event) -> AsyncIterator[bytes]:
        yield OF["speed"] + b"\n"
        while not answered.is_set():
            await asyncio.sleep(0.005)
            yield b"\n"

    async def main() -> None:
        async with aiohttp.ClientSession(headers=AS_LINES) as client:
            for _ in range(3):
                answered = asyncio.Event()
                url = f"{service.url}/predict?deadline_ms=250"
                async with asyncio.timeout(60), client.post(url, data=lines(answered)) as response:
                    answer = await response.json()
                    answered.set()
                assert (answer["reason"], answer["groups"]) == ("deadline", ["speed"])

    with logged() as records:
        asyncio.run(main())
    assert not records


# Deadlines on a raw socket, where a test decides when each byte leaves.


EVERY_GROUP = json.dumps({"groups": VALUES}).encode()
HALF_OF_IT = len(EVERY_GROUP) // 2


def test_the_deadline_in_the_middle_of_a_body_brings_the_base_rate(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=100", len(EVERY_GROUP))
        connection.send(EVERY_GROUP[:HALF_OF_IT])
        status, headers, answer = connection.response()
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert (answer["prediction"], answer["prefix"], answer["groups"]) == (BASE_RATE, 0, [])
    assert (answer["reason"], answer["complete"]) == ("deadline", False)
    assert answer["missing"] == ["speed", "hog", "lab"]


def test_a_body_that_ends_after_its_answer_leaves_the_connection_in_use(service: Running) -> None:
    with service.connect() as connection:
        for _ in range(3):
            connection.head("deadline_ms=30", len(EVERY_GROUP))
            connection.send(EVERY_GROUP[:HALF_OF_IT])
            assert connection.response()[2]["reason"] == "deadline"
            connection.send(EVERY_GROUP[HALF_OF_IT:])
        connection.head("", len(EVERY_GROUP))
        connection.send(EVERY_GROUP)
        assert connection.response()[2]["reason"] == "complete"


def test_a_flood_after_the_answer_is_cut(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=10")
        status, _, answer = connection.response()
        assert (status, answer["reason"]) == (200, "deadline")
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(800):  # 50 MB
                connection.send(chunk(b" " * 65_536))


def test_deadline_zero_does_not_wait_for_a_body(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=0", 50_000)
        assert connection.response()[2]["prediction"] == BASE_RATE
    answer = service.post({"groups": VALUES}, deadline_ms=0).json()
    assert (answer["prediction"], answer["prefix"], answer["reason"]) == (BASE_RATE, 0, "deadline")
    assert service.post({"groups": VALUES}, deadline_ms=0, rows=2).json()["prediction"] == [BASE_RATE] * 2


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("deadline_ms=3e6", {"Request_Timeout_Ms": "40"}),
        ("deadline_ms=40", {"Request_Timeout_Ms": "3e6"}),
        ("", {"Request_Timeout_Ms": "40"}),
        ("", {"grpc_timeout": "40m"}),
        ("", {"grpc_timeout": "40M", "Request_Timeout_Ms": "40.5"}),
        ("", {"grpc_timeout": "40m", "Request_Timeout_Ms": "3e6"}),
    ],
)
def test_the_smallest_of_several_deadlines_counts(service: Running, query: str, headers: dict[str, str]) -> None:
    with service.connect() as connection:
        connection.head(query, len(EVERY_GROUP), **headers)
        assert connection.response()[2]["reason"] == "deadline", "before this connection times out"


@pytest.mark.parametrize("query", ["", "deadline_ms=1e9"])
def test_no_deadline_is_longer_than_the_servers(query: str) -> None:
    settings = LIMITS.model_copy(update={"max_deadline_ms": 100})
    with run_service([small_model()], settings) as service, service.connect() as connection:
        connection.head(query, len(EVERY_GROUP))
        assert connection.response()[2]["reason"] == "deadline"


async def test_the_deadline_of_the_server_counts_from_the_begin_of_a_request_that_is_opened_later() -> None:
    core = PredictionService(ModelRegistry.of([small_model()]), Settings(max_deadline_ms=3_600_000))
    sink = Collecting()
    core.open(PredictionOptions(), now_ms() - 3_600_000, sink)
    await until_async(lambda: sink.answers)
    assert sink.answers[0].reason == "deadline"
