"""A service that stops: what is open is answered before its connection closes, and nothing more is begun."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from anytime import load
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.commands import command
from service.in_session import begin, post_groups
from service.serving import LINES, VALUES, Running, chunk, expected, lines_of, logged, running, timeless
from waiting import until

SPEED = {"speed": VALUES["speed"]}
PATIENT = {"ANYTIME_MAX_LATENESS_MS": "1000", "ANYTIME_MAX_DEADLINE_MS": "3600000"}


def test_what_is_open_is_answered_before_its_connection_closes_and_probes_are_answered_meanwhile(
    model_file: Path,
) -> None:
    model = load(model_file)
    reported = expected(model, SPEED)
    with (
        command(model_file, **PATIENT, ANYTIME_METRICS_PORT="0") as (served, started),
        ThreadPoolExecutor(1) as threads,
        started.stream(JSON) as text,
        started.stream(MSGPACK) as binary,
        started.connect() as whole,
        started.connect() as lines,
    ):
        service = Running(started.port, int(served.said(r"metrics on http://\S+:(\d+)")[1]))
        for name in range(20):
            for stream in (text, binary):
                stream.say("begin", name)
                stream.groups(name, SPEED)
        whole.head(length=1_000)
        whole.send(b'{"groups": ')
        lines.head(content_type=LINES)
        lines.send(chunk(lines_of(SPEED)))
        session = begin(service)
        post_groups(service, session, SPEED)
        waiting = threads.submit(service.get, f"/sessions/{session}/predict", deadline_ms=3_600_000)
        until(lambda: service.metric("anytime_open_predictions") == 43)
        served.process.send_signal(signal.SIGTERM)
        for stream in (text, binary):
            answers = {message["id"]: message for message in (stream.hear() for _ in range(20))}
            assert sorted(answers) == list(range(20))
            for answer in answers.values():
                assert (answer["type"], answer["reason"], answer["complete"]) == ("answer", "draining", False)
                assert timeless(answer) == reported
            assert stream.closed()[0] == 1012
        # Two bodies have not ended, so that the service goes on for a while.
        unready = service.scrape("/readyz")
        assert (unready.status_code, unready.json()["detail"]) == (503, "the service is stopping")
        assert service.scrape("/livez").status_code == 200
        by_session = waiting.result(20).json()
        assert (by_session["reason"], timeless(by_session)) == ("draining", reported)
        for connection, expectation in ((whole, expected(model, {})), (lines, reported)):
            status, _, answer = connection.response()
            assert (status, answer["reason"], timeless(answer)) == (200, "draining", expectation)
        assert service.metric("anytime_predictions_total", model="brake", reason="draining") == 43
        assert whole.at_end()
        assert lines.at_end()
        errors = served.stopped()
        for probe in (service.get, service.scrape):
            with pytest.raises(httpx.ConnectError):
                probe("/livez")
    assert served.process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


def test_a_draining_service_begins_nothing_more(model: Model) -> None:
    limits = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), limits)
    with running(app, limits) as service, service.stream() as stream, logged() as records:
        app.state.service.drain()
        stream.say("begin", "more")
        problem = stream.problem()
        assert (problem["status"], problem["id"]) == (503, "more")
        assert "stopping" in problem["detail"]
        response = service.post({"groups": VALUES})
        assert (response.status_code, response.headers["content-type"]) == (503, MEDIA_TYPE)
        assert response.headers["retry-after"] == "1"
        with pytest.raises(InvalidStatus) as refused, service.stream():
            pass
        assert refused.value.response.status_code == 503
        # What uvicorn says of handshakes that are refused is another's promise, see test_websocket.
        unexpected: list[Any] = [record for record in records if "handshake" not in record.getMessage()]
    assert not unexpected
