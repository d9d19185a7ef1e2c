"""A service that stops: what is open is answered before its connection closes, and nothing more is begun."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.commands import command
from service.serving import VALUES, expected, logged, running, small_model, timeless
from waiting import until

SPEED = {"speed": VALUES["speed"]}
PATIENT = {"ANYTIME_MAX_LATENESS_MS": "1000", "ANYTIME_MAX_DEADLINE_MS": "3600000"}


def test_what_is_open_is_answered_before_its_connection_closes(tmp_path: Path) -> None:
    model = small_model().save(tmp_path / "m.safetensors")
    reported = expected(model, SPEED)
    with (
        command(tmp_path / "m.safetensors", **PATIENT) as (served, service),
        ThreadPoolExecutor(1) as threads,
        service.stream(JSON) as text,
        service.stream(MSGPACK) as binary,
        service.connect() as whole,
        service.connect() as lines,
    ):
        for name in range(20):
            for stream in (text, binary):
                stream.say("begin", name)
                stream.groups(name, SPEED)
        whole.head(length=1_000)
        whole.send(b'{"groups": ')
        lines.head(content_type="application/x-ndjson")
        line = json.dumps({"group": "speed", "values": SPEED["speed"]}).encode() + b"\n"
        lines.send(b"%x\r\n%s\r\n" % (len(line), line))
        session = service.post_to("/sessions").json()["id"]
        service.post_to(f"/sessions/{session}/groups", SPEED)
        waiting = threads.submit(service.get, f"/sessions/{session}/predict", deadline_ms=3_600_000)
        until(lambda: service.metric("anytime_open_predictions") == 43)
        served.process.send_signal(signal.SIGTERM)
        for stream in (text, binary):
            answers = {message["id"]: message for message in (stream.hear() for _ in range(20))}
            assert sorted(answers) == list(range(20))
            for answer in answers.values():
                assert (answer["type"], answer["reason"], answer["complete"]) == ("answer", "draining", False)
                assert timeless(answer) == reported
            with pytest.raises(ConnectionClosed) as closed:
                stream.hear()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        by_session = waiting.result(20).json()
        assert (by_session["reason"], timeless(by_session)) == ("draining", reported)
        for connection, expectation in ((whole, expected(model, {})), (lines, reported)):
            status, _, answer = connection.response()
            assert (status, answer["reason"], timeless(answer)) == (200, "draining", expectation)
            assert connection.at_end()
        errors = served.stopped()
        with pytest.raises(httpx.ConnectError):
            service.get("/livez")
    assert served.process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


def test_a_draining_service_begins_nothing_more(model: Model) -> None:
    limits = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), limits)
    core: PredictionService = app.state.service
    with running(app, limits) as service, service.stream() as stream, logged() as records:
        core.drain()
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
        assert service.get("/livez").status_code == 200
        unready = service.get("/readyz")
        assert (unready.status_code, "stopping" in unready.json()["detail"]) == (503, True)
        # What uvicorn says of handshakes that are refused is another's promise, see test_websocket.
        unexpected: list[Any] = [record for record in records if "handshake" not in record.getMessage()]
    assert not unexpected
