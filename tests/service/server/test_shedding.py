"""Predictions that are not begun for want of time, on every binding: refused, or told the base rate at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any, get_args

import httpx
import msgspec
import pytest

from anytime.inference.values import Answer
from anytime.model.model import Model
from anytime.types import Overload
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.client import Client, ProblemError
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.doors import PREDICTING, WRONG, bearer, keyed_app
from service.inferring import tensors
from service.serving import BASE_RATE, VALUES, Running, expected, logged, running, small_model, timeless, until

PRIOR: dict[str, Any] = {"overload": "prior"}
EXTRACTORS: dict[str, Callable[[Any], Any]] = {
    "speed": lambda _: VALUES["speed"],
    "hog": lambda _: VALUES["hog"],
    "lab": lambda _: VALUES["lab"],
}


class Switch:
    """Stands in for the decision: lets predictions in, or does not."""

    def __init__(self) -> None:
        self.lets_in = False
        self.asked = 0

    def __call__(self, _now_ms: float) -> bool:
        self.asked += 1
        return self.lets_in


@pytest.fixture(scope="module")
def app(settings: Settings) -> AnytimeAPI:
    return create_app(ModelRegistry.of([small_model()]), settings)


@pytest.fixture(scope="module")
def swamped(app: AnytimeAPI, settings: Settings) -> Iterator[Asking]:
    with running(app, settings) as service, httpx.Client(base_url=service.url, timeout=30) as http:
        yield Asking(service.port, http)


class Asking(Running):
    """A service, asked over connections that are kept."""

    def __init__(self, port: int, http: httpx.Client) -> None:
        super().__init__(port)
        object.__setattr__(self, "http", http)

    http: httpx.Client

    def post(self, body: Any, **parameters: Any) -> httpx.Response:
        return self.http.post("/predict", json=body, params=parameters)

    def post_to(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.http.get(path, params=parameters or None)


@pytest.fixture
def switch(app: AnytimeAPI, monkeypatch: pytest.MonkeyPatch) -> Switch:
    switch = Switch()
    handler: PredictionService = app.state.handler
    monkeypatch.setattr(handler.admission, "admits", switch)
    return switch


def is_refusal(response: httpx.Response) -> bool:
    problem = response.json()
    return (
        response.status_code == 503
        and int(response.headers["retry-after"]) >= 1
        and response.headers["content-type"] == MEDIA_TYPE
        and problem["type"] == "urn:anytime:problem:overloaded"
        and "retry in" in problem["detail"]
    )


def is_prior(answer: dict[str, Any], rows: int = 1) -> bool:
    return (
        answer["prediction"] == (BASE_RATE if rows == 1 else [BASE_RATE] * rows)
        and (answer["prefix"], answer["complete"], answer["reason"]) == (0, False, "overload")
        and answer["missing"] == ["speed", "hog", "lab"]
        and "this is the base rate" in answer["note"]
    )


def shed(service: Running, how: str) -> float:
    return service.metric("anytime_shed_total", how=how, why="lateness")


def test_a_post_is_refused_and_its_connection_serves_the_next(swamped: Asking, switch: Switch) -> None:
    before = shed(swamped, "refused")
    client = swamped.http
    with logged() as records:
        for _ in range(3):
            assert is_refusal(client.post("/predict", json={"groups": VALUES}))
        assert is_refusal(client.post("/predict", content=b"x" * 90_000)), "whatever is in it"
        switch.lets_in = True
        answer = client.post("/predict", json={"groups": VALUES}).json()
        assert (answer["reason"], answer["prefix"]) == ("complete", 3)
    assert shed(swamped, "refused") - before == 4
    assert switch.asked == 5, "once for each"
    assert not records


def test_a_post_is_refused_before_its_body_has_come(swamped: Asking, switch: Switch) -> None:
    body = json.dumps({"groups": VALUES}).encode()
    with swamped.connect() as connection:
        connection.head(length=len(body))
        status, headers, _ = connection.response()
        assert (status, headers["retry-after"]) == (503, "1")
        connection.send(body)
        switch.lets_in = True
        connection.head(length=len(body))
        connection.send(body)
        assert connection.response()[0] == 200


@pytest.fixture
def brief(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A service that lets nobody in, and waits 0.2 s for the rest of a body."""
    monkeypatch.setattr("anytime_service.server.connections.LINGER_S", 0.2)
    app = create_app(ModelRegistry.of([small_model()]), settings)
    monkeypatch.setattr(app.state.handler.admission, "admits", Switch())
    with running(app, settings) as service:
        yield service


def test_a_body_that_goes_on_and_on_after_its_refusal_is_cut(brief: Running) -> None:
    with brief.connect() as slow:
        slow.head()
        assert slow.response()[0] == 503
        slow.send(b"1\r\n \r\n")
        assert slow.at_end()
    with brief.connect() as long:
        long.head()
        assert long.response()[0] == 503
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            long.send((b"2710\r\n" + b" " * 10_000 + b"\r\n") * 5_000)


def test_an_inference_whose_body_does_not_come_is_refused_all_the_same(brief: Running) -> None:
    with brief.connect() as slow:
        slow.send(b"POST /v2/models/brake/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\n" + b" " * 20)
        status, headers, told = slow.response()
        assert (status, headers["retry-after"], told["error"]) == (503, "1", told["detail"])
        assert slow.at_end()
    assert shed(brief, "refused") == 1
    assert brief.metric("anytime_held_bytes") == 0


def test_who_asks_for_the_base_rate_is_told_it_at_once(swamped: Asking, switch: Switch, model: Model) -> None:
    before = shed(swamped, "prior"), shed(swamped, "refused")
    for _ in range(3):
        assert is_prior(swamped.post({"groups": VALUES}, **PRIOR).json())
    assert is_prior(swamped.post({"groups": {}}, **PRIOR, rows=3).json(), rows=3)
    cheap = swamped.post({"groups": VALUES}, **PRIOR, budget=1).json()
    assert (cheap["reason"], cheap["budget"], cheap["missing"]) == ("overload", 1.0, ["speed"])
    nothing = swamped.post({"groups": VALUES}, **PRIOR, budget=0).json()
    assert (nothing["reason"], nothing["complete"], nothing["note"]) == ("budget", True, None), "nothing to wait for"
    assert (shed(swamped, "prior") - before[0], shed(swamped, "refused") - before[1]) == (6, 0)
    switch.lets_in = True
    assert timeless(swamped.post({"groups": VALUES}, **PRIOR).json()) == expected(model, VALUES)


def test_a_base_rate_that_is_at_hand_depends_on_everything_in_the_head(swamped: Asking, switch: Switch) -> None:
    for _ in range(2):  # made, and then at hand
        packed = swamped.http.post("/predict", params=PRIOR, headers={"accept": "application/msgpack"})
        assert is_prior(msgspec.msgpack.decode(packed.content))
        assert is_prior(swamped.http.post("/predict", params=PRIOR).json())
        for parameters, headers, status, field in (
            ({"model": "break"}, {}, 404, "model"),
            ({"deadline": "1"}, {}, 422, "deadline"),
            ({}, {"grpc-timeout": "soon"}, 422, "grpc-timeout"),
            ({}, {"content-type": "text/csv"}, 415, None),
            ({}, {"content-encoding": "gzip"}, 415, None),
        ):
            response = swamped.http.post("/predict", params=PRIOR | parameters, headers=headers)
            assert (response.status_code, response.json().get("field")) == (status, field)


def test_a_base_rate_that_is_at_hand_is_that_of_the_models_that_are(
    app: AnytimeAPI, swamped: Asking, switch: Switch
) -> None:
    handler: PredictionService = app.state.handler
    kept, model = handler.registry, small_model()
    assert [swamped.post({}, **PRIOR).json()["version"] for _ in range(2)] == ["v1", "v1"]
    handler.registry = ModelRegistry.of([replace(model, manifest=model.manifest.model_copy(update={"version": "v2"}))])
    try:
        assert [swamped.post({}, **PRIOR).json()["version"] for _ in range(2)] == ["v2", "v2"]
    finally:
        handler.registry = kept


def test_requests_that_cannot_be_told_at_once_are_told_the_same(swamped: Asking, switch: Switch) -> None:
    body = json.dumps({"groups": VALUES}).encode()
    assert is_refusal(swamped.http.post("/predict", content=body, headers={"connection": "close"}))
    with swamped.connect() as old:
        old.send(b"POST /predict HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert old.response()[0] == 503
        assert old.at_end()
    with swamped.connect() as careful:
        careful.head(length=len(body), expect="100-continue")
        assert careful.response()[0] == 503
    with swamped.connect() as hasty:
        request = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        hasty.send(request * 5)
        assert [hasty.response()[0] for _ in range(5)] == [503] * 5
    with swamped.connect() as busy:
        switch.lets_in = True
        busy.send(b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n")
        until(lambda: swamped.metric("anytime_open_predictions") == 1)
        switch.lets_in = False
        busy.send(body.ljust(5_000) + request * 2)
        assert [busy.response()[0] for _ in range(3)] == [200, 503, 503]


def test_health_metrics_sessions_and_their_groups_are_never_shed(swamped: Asking, switch: Switch) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready", "/models", "/"):
        assert swamped.get(path).status_code == 200
    session = swamped.post_to("/sessions").json()["id"]
    assert swamped.post_to(f"/sessions/{session}/groups", VALUES).json()["prefix"] == 3
    assert switch.asked == 0


@pytest.mark.parametrize("path", ["/sessions/{}/predict", "/predict?session={}"])
def test_a_sessions_prediction_is_shed_too(swamped: Asking, switch: Switch, path: str) -> None:
    session = swamped.post_to("/sessions").json()["id"]
    swamped.post_to(f"/sessions/{session}/groups", VALUES)
    path = path.format(session)
    assert is_refusal(swamped.get(path))
    asked = httpx.URL(path).copy_merge_params(PRIOR)
    prior = swamped.http.get(asked).json()
    assert (prior["prediction"], prior["prefix"], prior["reason"]) == (BASE_RATE, 0, "overload")
    switch.lets_in = True
    assert swamped.http.get(asked).json()["prefix"] == 3, "the session is as it was"


@pytest.mark.parametrize("told", [True, False], ids=["rows told", "rows counted"])
def test_a_sessions_base_rate_has_as_many_rows_as_the_session(swamped: Asking, switch: Switch, told: bool) -> None:
    session = swamped.post_to("/sessions", {"rows": 3} if told else None).json()["id"]
    if not told:
        swamped.post_to(f"/sessions/{session}/groups", {"speed": [[1.0], [2.0], [3.0]]})
    for asked in ({}, {"deadline_ms": 1_000}):
        answer = swamped.get(f"/sessions/{session}/predict", ranking="true", **PRIOR, **asked).json()
        assert is_prior(answer, rows=3)
        assert sorted(answer["ranking"]) == [0, 1, 2]


@pytest.mark.parametrize("lets_in", [False, True])
def test_an_inference_may_ask_for_the_base_rate_by_parameter_or_query(
    swamped: Asking, switch: Switch, lets_in: bool
) -> None:
    switch.lets_in = lets_in
    path = "/v2/models/brake/infer"

    def ask(query: str = "", **parameters: Any) -> httpx.Response:
        body: dict[str, Any] = {"inputs": tensors({"speed": [[2.0]]})}
        return swamped.post_to(path + query, body | ({"parameters": parameters} if parameters else {}))

    if lets_in:
        assert [each.json()["parameters"]["prefix"] for each in (ask(), ask(**PRIOR))] == [1, 1]
        return
    for response in (ask(), ask(overload="refuse"), ask(budget=3, overload=None)):
        assert is_refusal(response)
        assert response.json()["error"] == response.json()["detail"]
    for response in (ask("?overload=prior"), ask(overload="prior")):
        told = response.json()
        assert told["outputs"][0]["data"] == [BASE_RATE]
        assert (told["parameters"]["prefix"], told["parameters"]["reason"]) == (0, "overload")
    assert is_refusal(ask(overload="maybe")), "what is refused is not looked at"
    body = json.dumps({"inputs": [], "parameters": {"overload": "prior"}}).encode()
    with swamped.connect() as connection:
        for content in (body, body.ljust(90_000)):
            head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
            for part in (head[:20].encode(), head[20:].encode(), content[:40], content[40:50], content[50:]):
                connection.send(part)
                sleep(0.002)
            status, _, told = connection.response()
            assert (status, told["parameters"]["reason"]) == (200, "overload")
        connection.send(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\n".encode() + b" " * 50)
        assert connection.response()[0] == 503


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_stream_is_told_by_an_error_and_what_it_sends_for_it_is_dropped(
    swamped: Asking, switch: Switch, model: Model, form: Form
) -> None:
    with swamped.stream(form) as stream:
        for name in (1, "two"):
            stream.say("begin", name)
            stream.groups(name, VALUES)
            stream.say("end", name)
            problem = stream.problem()
            assert (problem["id"], problem["status"]) == (name, 503)
        stream.say("begin", 3, **PRIOR)
        stream.groups(3, VALUES)
        assert is_prior(stream.answer(3))
        switch.lets_in = True
        stream.say("begin", 1)  # the same again: it never was
        stream.groups(1, VALUES)
        assert timeless(stream.answer(1)) == expected(model, VALUES)
        stream.say("end", "three")
        assert "never begun" in stream.problem()["detail"], "ids of which nothing is known are errors as ever"
    assert swamped.metric("anytime_open_predictions") == 0


def test_who_may_not_open_more_is_told_once_too(model: Model, settings: Settings) -> None:
    few = settings.model_copy(update={"max_open": 1})
    with running(create_app(ModelRegistry.of([model]), few), few) as service, service.stream() as stream:
        stream.say("begin", 1)
        stream.say("begin", 2)
        stream.groups(2, VALUES)
        assert stream.problem()["id"] == 2
        stream.groups(1, VALUES)
        assert stream.answer(1)["prefix"] == 3
        assert service.metric("anytime_shed_total", how="refused", why="open") == 1


def test_whoever_is_let_in_stops_waiting_when_it_has_had_its_turn(
    app: AnytimeAPI, swamped: Asking, switch: Switch
) -> None:
    switch.lets_in = True
    handler: PredictionService = app.state.handler
    body = json.dumps({"groups": VALUES}).encode()
    for query in ("", "?model=break", "?deadline_ms=5"):
        for _ in range(5):
            swamped.post_to(f"/predict{query}", {"groups": VALUES})
    for _ in range(5):
        with swamped.connect() as connection:
            connection.head(length=1_000)
            connection.send(body)
    swamped.get("/sessions/none/predict")
    swamped.get("/predict")
    swamped.post_to("/v2/models/none/infer", {})
    until(lambda: handler.admission.waiting == 0)


def test_overload_is_refuse_or_prior(swamped: Asking, switch: Switch) -> None:
    switch.lets_in = True
    problem = swamped.post({"groups": {}}, overload="panic").json()
    assert (problem["status"], problem["field"]) == (422, "overload")
    assert "refuse, prior" in problem["detail"]
    with swamped.stream() as stream:
        stream.say("begin", 1, overload="panic")
        assert "overload" in stream.problem()["detail"]


def test_a_client_that_is_refused_answers_the_base_rate_and_sends_no_more(swamped: Asking, switch: Switch) -> None:
    switch.lets_in = True
    sent: list[str] = []

    def speed(x: Any) -> list[float]:
        sent.append("speed")
        return VALUES["speed"]

    extractors = {**EXTRACTORS, "speed": speed}
    with Client(swamped.url) as client:
        client.warm_up(extractors)
        assert client.run(extractors, None, 5_000).prefix == 3
        switch.lets_in = False
        for overload in get_args(Overload):
            answer = client.run(extractors, None, 5_000, overload=overload)
            assert (answer.prediction, answer.prefix, answer.reason) == (BASE_RATE, 0, "overload")
            assert answer.note is not None
            assert "base rate" in answer.note
            assert answer.elapsed_ms < 4_000, "not at the deadline, but at once"
        with pytest.raises(ProblemError) as refused:
            client.predict(VALUES, deadline_ms=5_000)
        assert refused.value.overloaded
        with pytest.raises(ProblemError):
            client.predict(VALUES)
        assert client.predict(VALUES, deadline_ms=5_000, overload="prior").reason == "overload"
        switch.lets_in = True
        assert client.predict(VALUES, overload="prior").prefix == 3
        with pytest.raises(ValueError, match="overload is 'panic'"):
            client.predict(VALUES, overload="panic")  # type: ignore[arg-type]


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        lambda client: client.run(EXTRACTORS, None, 5_000),
        lambda client: client.predict(VALUES, deadline_ms=5_000, overload="prior"),
    ],
)
def test_the_first_call_of_a_client_has_the_base_rate_of_a_server_that_refuses(
    first: Callable[[Client], Answer], spares: bool, swamped: Asking, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(swamped.url) as client:
        monkeypatch.setattr(client._async._connection.throttle, "rejects", lambda: spares)
        answer = first(client)
        assert (answer.prediction, answer.prefix, answer.reason) == (BASE_RATE, 0, "overload")
        assert answer.note is not None
        at_once = client.run(EXTRACTORS, None, 0)
        assert (at_once.prediction, at_once.reason, at_once.note) == (BASE_RATE, "deadline", None)


def test_the_first_call_of_a_client_tells_of_a_server_that_refuses_even_the_base_rate(
    swamped: Asking, switch: Switch, app: AnytimeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.lets_in = True
    with Client(swamped.url) as client:
        client.predict(VALUES)  # connects
        monkeypatch.setattr(app.state.handler, "draining", True)
        with pytest.raises(ProblemError, match="the service is stopping"):
            client.run(EXTRACTORS, None, 5_000)


def test_a_client_spares_a_server_that_refuses(swamped: Asking, switch: Switch) -> None:
    with Client(swamped.url) as client:
        switch.lets_in = True
        client.warm_up()
        switch.lets_in = False
        for number in range(60):
            before = switch.asked
            with pytest.raises(ProblemError) as refused:
                client.predict(VALUES, deadline_ms=5_000)
            assert refused.value.overloaded
            if switch.asked == before:
                assert number >= 3
                assert "did not send this one" in refused.value.detail
        assert switch.asked < 30
        before = switch.asked
        answers = [client.predict(VALUES, deadline_ms=5_000, overload="prior") for _ in range(20)]
        assert {(answer.prediction, answer.reason) for answer in answers} == {(BASE_RATE, "overload")}
        assert switch.asked < before + 10
        before = switch.asked
        with pytest.raises(ProblemError):
            client.predict(VALUES)
        assert switch.asked == before + 1, "who has no deadline may as well wait for the server"
        switch.lets_in = True
        while client.predict(VALUES, deadline_ms=5_000, overload="prior").reason == "overload":
            sleep(0.05)  # what is remembered fades


def test_a_key_that_has_gone_is_told_no_base_rate_that_it_was_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    file = tmp_path / "keys"
    old, new = "old-0123456789abcdef", "new-0123456789abcdef"
    file.write_text(old, encoding="utf-8")
    limits = settings.model_copy(update={"api_keys_file": file})
    app = create_app(ModelRegistry.of([small_model()]), limits)
    monkeypatch.setattr(app.state.handler.admission, "admits", Switch())
    with running(app, limits) as service, httpx.Client(base_url=service.url, timeout=30) as http:

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return http.post("/predict", params=PRIOR, json={"groups": VALUES}, headers=headers).status_code

        assert [status(old) for _ in range(3)] == [200, 200, 200]
        file.write_text(new, encoding="utf-8")
        until(lambda: status(new) == 200)
        assert status(old) == 401


def test_who_has_no_key_that_holds_is_told_so_and_takes_no_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    app, limits = keyed_app()
    switch = Switch()
    monkeypatch.setattr(app.state.handler.admission, "admits", switch)
    twice = [("Authorization", f"Bearer {PREDICTING}")] * 2
    with running(app, limits) as service, httpx.Client(base_url=service.url, timeout=30) as http:
        for method, path in (
            ("POST", "/predict"),
            ("POST", "/predict?overload=prior"),
            ("GET", "/predict?session=nobody"),
            ("GET", "/sessions/nobody/predict"),
            ("POST", "/v2/models/brake/infer"),
        ):
            for headers in ([], [*bearer(WRONG).items()], twice):
                assert http.request(method, path, headers=headers).status_code == 401
            assert switch.asked == 0
            told = http.request(method, path, headers=bearer(PREDICTING)).status_code
            assert (told, switch.asked) == (200 if "prior" in path else 503, 1)
            switch.asked = 0


def test_a_head_that_is_known_is_not_when_its_key_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    file = tmp_path / "keys"
    old, new = b"old-0123456789abcdef", b"new-0123456789abcdef"
    file.write_bytes(old)
    limits = settings.model_copy(update={"api_keys_file": file})
    app = create_app(ModelRegistry.of([small_model()]), limits)
    monkeypatch.setattr(app.state.handler.admission, "admits", Switch())
    with running(app, limits) as service, service.connect() as connection:

        def status(key: bytes) -> int:
            head = b"POST /predict HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer %b\r\nContent-Length: 2\r\n\r\n"
            connection.send(head % key + b"{}")
            return connection.response()[0]

        assert [status(old) for _ in range(4)] == [503] * 4
        assert status(new) == 401
        file.write_bytes(new)
        until(lambda: status(new) == 503)
        assert status(old) == 401


def test_every_refusal_counts_as_a_problem_too(swamped: Asking, switch: Switch) -> None:
    before = swamped.metric("anytime_errors_total", kind="overloaded")
    for _ in range(3):
        assert is_refusal(swamped.post({"groups": VALUES}))
        assert is_refusal(swamped.post_to("/v2/models/brake/infer", {"inputs": []}))
    assert is_refusal(swamped.get("/predict", session="nobody"))
    assert is_refusal(swamped.http.post("/predict", headers={"connection": "close"}))
    with swamped.stream() as stream:
        stream.say("begin", 1)
        assert stream.problem()["status"] == 503
    assert swamped.metric("anytime_errors_total", kind="overloaded") - before == 9
