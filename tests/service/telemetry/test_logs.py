"""What the service logs: forms, levels, request ids, and what never gets into a log."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from anytime_service.app import create_app
from anytime_service.http.responses import problem_of
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from anytime_service.telemetry import logs
from anytime_service.telemetry.context import RequestContext, new_ids, on_behalf_of, trace_of
from anytime_service.telemetry.logs import (
    MAX_LINES,
    WINDOW_S,
    JsonFormatter,
    RateLimitFilter,
    TextFormatter,
    log_config,
    shown_path,
    shown_query,
)
from anytime_service.telemetry.metrics import Metrics
from models.present import present
from service.commands import command
from service.doors import refused
from service.in_session import begin
from service.serving import VALUES, Running, running, small_model
from waiting import WAIT_S, until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
OURS = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")


@contextmanager
def written(settings: Settings) -> Iterator[io.StringIO]:
    """What loggers of the service write in the form that is set."""
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter("%(message)s"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("anytime_service", "uvicorn.error"):
            logger = logging.getLogger(name)
            patch.setattr(logger, "handlers", [*logger.handlers, handler])
        ours = logging.getLogger("anytime_service")
        before = ours.level
        ours.setLevel(settings.log_level.upper())
        try:
            yield sink
        finally:
            ours.setLevel(before)


@contextmanager
def logging_service(**options: Any) -> Iterator[tuple[Running, io.StringIO]]:
    """A service with these settings, and what it logs."""
    settings = Settings(port=0, **options)
    app = create_app(ModelRegistry.of([small_model()]), settings)

    async def fail() -> None:
        raise RuntimeError("it broke")

    app.add_api_route("/fail", fail, include_in_schema=False)
    with running(app, settings) as service, written(settings) as sink:
        yield service, sink


def lines(sink: io.StringIO) -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in sink.getvalue().splitlines()]
    return [line for line in logged if line["logger"] != "uvicorn.error" or line["level"] != "info"]


def correlation(headers: list[tuple[bytes, bytes]] | None = None) -> RequestContext:
    return RequestContext("the-request", headers or [], Metrics().errors)


@pytest.mark.parametrize(
    "sent", ["a", "order-66/step_2", "x" * 128, "{'$?'}", "0af7651916cd43dd8448eb211c80319c"], ids=str
)
def test_a_valid_request_id_is_used(service: Running, sent: str) -> None:
    assert httpx.get(f"{service.url}/livez", headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "two words", "tab\tbed", "caf\xe9"], ids=ascii)
def test_an_invalid_request_id_is_replaced(service: Running, sent: str) -> None:
    response = httpx.get(f"{service.url}/livez", headers=[(b"x-request-id", sent.encode("latin-1"))])
    assert OURS.fullmatch(response.headers["x-request-id"])


def test_every_response_has_an_id_of_its_own(service: Running) -> None:
    responses = [
        service.get("/livez"),
        service.post({"groups": VALUES}),
        service.post([1, 2]),
        service.post_to("/sessions"),
        service.post_to("/sessions/none/groups", {}),
        service.get("/nowhere"),
        service.get("/metrics"),
        service.get("/v2"),
        service.get("/"),
        service.get("/fail"),
    ]
    ids = [response.headers.get_list("x-request-id") for response in responses]
    assert all(len(each) == 1 and OURS.fullmatch(each[0]) for each in ids)
    assert len({each[0] for each in ids}) == len(ids)
    assert len({next(made) for made in (new_ids(), new_ids()) for _ in range(1000)}) == 2000, "of two processes"
    with service.connect() as early:
        early.head("deadline_ms=1", x_request_id="early")
        assert early.response()[1]["x-request-id"] == "early"


def test_handshakes_have_the_id_too(service: Running) -> None:
    with service.stream(additional_headers={"X-Request-Id": "of-the-stream"}) as stream:
        assert present(stream.wire.response).headers["x-request-id"] == "of-the-stream"
    assert OURS.fullmatch(refused(service, subprotocols=["mqtt"]).headers["x-request-id"])


def test_a_failure_has_the_id_of_its_log_line() -> None:
    with logging_service(log_format="json") as (service, sink):
        response = httpx.get(f"{service.url}/fail", headers={"x-request-id": "broken-1"})
        assert (response.status_code, response.json()["request_id"]) == (500, "broken-1")
        assert (response.headers["content-type"], "it broke" in response.text) == (MEDIA_TYPE, False)
        assert "request_id" not in service.get("/nowhere").json()
        [line] = lines(sink)
    assert (line["level"], line["request_id"]) == ("error", "broken-1")
    assert line["exception"].endswith("RuntimeError: it broke")
    with on_behalf_of(correlation()):
        assert problem_of(RuntimeError("anything")).request_id == "the-request"
    assert problem_of(RuntimeError("anything")).request_id is None


def test_a_line_of_json_says_what_when_and_of_which_request() -> None:
    record = logging.LogRecord(
        "anytime_service", logging.WARNING, __file__, 1, "of %s\nand more \ud800", ("two",), None
    )
    line = JsonFormatter().format(record)
    fields = json.loads(line)
    at = fields.pop("ts")
    assert fields == {"level": "warning", "logger": "anytime_service", "message": "of two\nand more \ud800"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at)
    assert ("\n" in line, abs((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()) < 60) == (False, True)
    with on_behalf_of(correlation([(b"traceparent", TRACEPARENT.encode())])):
        fields = json.loads(JsonFormatter().format(record))
    assert (fields["request_id"], fields["trace_id"], fields["span_id"]) == ("the-request", TRACE, SPAN)


def test_a_line_of_text_ends_with_its_request() -> None:
    record = logging.LogRecord("anytime_service", logging.INFO, __file__, 1, "served", None, None)
    lines_of_text = TextFormatter("%(levelprefix)s %(message)s", use_colors=False)
    for context, end in ((nullcontext(), ""), (on_behalf_of(correlation()), " [the-request]")):
        with context:
            assert lines_of_text.format(record) == f"INFO:     served{end}"


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (TRACEPARENT, (TRACE, SPAN)),
        (f"01-{TRACE}-{SPAN}-00-of-the-future", (TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (TRACEPARENT.upper(), None),
        (TRACEPARENT[:-1], None),
        ("", None),
    ],
)
def test_traces_are_read_by_the_standard(sent: str, found: tuple[str, str] | None) -> None:
    assert trace_of(sent) == found
    headers = [(b"traceparent", sent.encode())]
    assert correlation(headers).trace() == found
    assert correlation(headers * 2).trace() is None, "two are none"


def test_access_is_logged_only_where_that_is_wanted() -> None:
    with logging_service() as (service, sink):
        service.post({"groups": VALUES})
        assert not sink.getvalue()
    with logging_service(access_log=True, log_format="json", log_level="warning") as (service, sink):
        url = f"{service.url}/predict?deadline_ms=50&policy=prefix"
        headers = {"x-request-id": "r-1", "traceparent": TRACEPARENT}
        response = httpx.post(url, json={"groups": VALUES}, headers=headers)
        until(lambda: bool(sink.getvalue()))
        [line] = lines(sink)
    assert 0 < line["duration_ms"] < 20_000
    assert (
        line
        | {
            "method": "POST",
            "path": "/predict",
            "query": "deadline_ms=50&policy=prefix",
            "status": 200,
            "bytes": len(response.content),
            "request_id": "r-1",
            "trace_id": TRACE,
            "logger": "anytime_service.access",
        }
        == line
    )


def test_a_connection_is_one_line_when_it_has_ended() -> None:
    with logging_service(access_log=True, log_format="json") as (service, sink):
        with service.stream(additional_headers={"x-request-id": "w-1"}) as stream:
            stream.ask(1, deadline_ms=0)
            assert not sink.getvalue()
        until(lambda: bool(sink.getvalue()))
        [line] = lines(sink)
        assert (line["method"], line["path"], line["status"]) == ("WEBSOCKET", "/stream", 101)
        assert (line["request_id"], line["bytes"] > 100) == ("w-1", True)
        refused(service, subprotocols=["mqtt"])
        until(lambda: len(lines(sink)) == 2)
        assert lines(sink)[1]["status"] == 400


def test_an_early_answer_is_timed_by_when_it_left_and_a_client_that_left_has_no_status() -> None:
    with logging_service(access_log=True, log_format="json") as (service, sink):
        with service.connect() as connection:
            connection.head("deadline_ms=10")
            connection.response()
            until(lambda: len(lines(sink)) == 1, "its body has not ended")
        with service.connect() as connection:
            connection.head()
            until(lambda: service.metric("anytime_open_predictions") == 1)
        until(lambda: any(line["status"] is None for line in lines(sink)))
        assert lines(sink)[0]["status"] == 200


def test_an_answer_is_a_line_for_those_who_debug_without_what_was_predicted() -> None:
    with logging_service(log_level="debug", log_format="json") as (service, sink):
        with service.stream(additional_headers={"x-request-id": "w-1"}) as stream:
            answer = stream.ask(1, deadline_ms=5)
        until(lambda: bool(sink.getvalue()))
        [line] = lines(sink)
    expected = {"model": "brake", "reason": "deadline", "prefix": 0, "level": "debug", "request_id": "w-1"}
    assert line | expected == line, "though it left from an alarm"
    assert line["late_ms"] is not None
    assert str(answer["prediction"]) not in [str(value) for value in line.values()]


def test_an_answer_caused_by_another_request_is_logged_for_the_request_that_predicts() -> None:
    with logging_service(log_level="debug", log_format="json") as (service, sink), ThreadPoolExecutor(1) as threads:
        where = f"{service.url}/sessions/{begin(service)}"
        ask = partial(httpx.get, headers={"x-request-id": "asker"}, timeout=WAIT_S)
        waiting = threads.submit(ask, f"{where}/predict?deadline_ms=9000")
        until(lambda: service.metric("anytime_open_predictions") == 1)
        httpx.post(f"{where}/groups", json=VALUES, headers={"x-request-id": "giver"})
        assert waiting.result(60).json()["reason"] == "complete"
        until(lambda: bool(sink.getvalue()))
        [line] = lines(sink)
    assert (line["message"].startswith("answered"), line["request_id"]) == (True, "asker")


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (b"deadline_ms=5&budget=1.5&overload=prior", "deadline_ms=5&budget=1.5&overload=prior"),
        (b"session=Zm9v&deadline_ms=5", "session=%2A%2A%2A&deadline_ms=5"),
        (b"api_key=secret", "api_key=%2A%2A%2A"),
        (b"model=a%0Ab", "model=a%0Ab"),
        (b"", ""),
    ],
)
def test_queries_are_shown_without_what_may_be_a_secret(query: bytes, shown: str) -> None:
    assert shown_query(query) == shown


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/sessions/Zm9v/groups", "/sessions/{id}/groups"),
        ("/sessions/Zm9v", "/sessions/{id}"),
        ("/Sessions//Zm9v/groups", "/Sessions//{id}/groups"),
        ("/v1/sessions/Zm9v/predict", "/v1/sessions/{id}/predict"),
        ("/sessions", "/sessions"),
        ("/models/brake/plan", "/models/brake/plan"),
        ("/caf\xe9\nINFO: forged", "/caf%C3%A9%0AINFO:%20forged"),
    ],
)
def test_paths_are_shown_on_one_line_without_the_ids_of_sessions(path: str, shown: str) -> None:
    assert shown_path({"path": path}) == shown


def test_the_access_log_never_has_the_id_of_a_session() -> None:
    with logging_service(access_log=True, log_format="json", log_level="debug") as (service, sink):
        name = begin(service)
        for path in (f"/sessions/{name}/groups", f"/%73essions/{name}/groups", f"/nowhere/sessions/{name}"):
            service.post_to(path, VALUES)
        service.get(f"/sessions/{name}/predict", deadline_ms=0)
        service.get("/predict", session=name)
        for _ in range(2):
            service.delete(f"/sessions/{name}")
        with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{service.port}/sessions/{name}", proxy=None):
            pass
        until(lambda: sum("WEBSOCKET" in line for line in sink.getvalue().splitlines()) == 1)
        logged = lines(sink)
    assert name not in sink.getvalue()
    assert [(line["method"], line["path"]) for line in logged if "path" in line][1:5] == [
        ("POST", "/sessions/{id}/groups"),
        ("POST", "/sessions/{id}/groups"),
        ("POST", "/nowhere/sessions/{id}"),
        ("GET", "/sessions/{id}/predict"),
    ]


def test_the_levels_of_others_are_never_those_at_which_they_tell_whole_messages() -> None:
    for level, of_others in {"debug": "INFO", "info": "INFO", "error": "ERROR"}.items():
        loggers = log_config(Settings(log_level=level))["loggers"]
        assert loggers["uvicorn.error"]["level"] == loggers["uvicorn"]["level"] == of_others
        assert loggers["anytime_service"]["level"] == level.upper()


def test_a_process_logs_json_alone_and_never_a_secret_and_a_client_cannot_fill_its_log(model_file: Path) -> None:
    environment = {"ANYTIME_LOG_FORMAT": "JSON", "ANYTIME_LOG_LEVEL": "debug", "ANYTIME_ACCESS_LOG": "true"}
    secret, value = "s3cr3t-key", 123456.75
    headers = {"Authorization": f"Bearer {secret}", "X-Request-Id": "of-the-test"}
    with command(model_file, **environment) as (served, service):
        groups = {**VALUES, "speed": [value]}
        for query in (f"key={secret}", "deadline_ms=40"):
            service.post_to(f"/predict?{query}", {"groups": groups}, headers=headers)
        subprotocols: Any = ["anytime.v1", f"anytime.key.{secret}"]
        with service.stream(subprotocols=subprotocols, additional_headers=headers) as stream:
            stream.say("begin", 1)
            stream.groups(1, groups)
            stream.say("group", 1, group="speed", values=[value, value])
            stream.hear()
        for _ in range(MAX_LINES + 20):
            with service.connect() as connection:
                connection.send(b"nonsense\r\n\r\n")
                assert connection.file.readline().startswith(b"HTTP/1.1 ")
        served.process.send_signal(signal.SIGTERM)
        output = served.stopped()
    logged = [json.loads(line) for line in output.splitlines()]
    assert {line["logger"] for line in logged} >= {"anytime_service", "anytime_service.access", "uvicorn.error"}
    assert sum(line.get("request_id") == "of-the-test" for line in logged) >= 4
    assert (secret in output, str(value) in output) == (False, False)
    about = [line for line in logged if "Invalid HTTP request received." in line["message"]]
    assert len(about) == MAX_LINES + 1
    assert [line["suppressed"] for line in about if "suppressed" in line] == [20]


def record_of(line: int, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("limited", level, __file__, line, "a client sent %s", ("nonsense",), None)


def test_warnings_are_limited_by_their_place_in_the_code_and_again_let_through_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_s = 0.0
    monkeypatch.setattr(logs, "monotonic", lambda: time_s)
    limited = RateLimitFilter()
    assert [limited.filter(record_of(1)) for _ in range(MAX_LINES + 3)] == [True] * MAX_LINES + [False] * 3
    assert limited.filter(record_of(2)), "another place"
    assert all(limited.filter(record_of(1, logging.INFO)) for _ in range(100)), "information is not limited"
    limited.report(WINDOW_S)
    assert not caplog.records, "the window is not over"
    time_s = WINDOW_S
    assert limited.filter(record_of(1))
    limited.report()
    assert [record.getMessage() for record in caplog.records] == [
        "3 more lines like this one were not logged: a client sent nonsense"
    ]
    assert all(limited.filter(record) for record in caplog.records * 100), "nor are the reports"
