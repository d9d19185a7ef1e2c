"""Load shedding on every binding: predictions that are not admitted are refused, or answered with the base rate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any, get_args
from unittest.mock import Mock

import httpx
import msgspec
import pytest

from anytime.inference.prediction import Answer
from anytime.model.model import Model
from anytime.types import Overload
from anytime_service.api.oip import MAX_UNADMITTED
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.client import Client, ProblemError
from anytime_service.limits.tuning import Tuning
from anytime_service.limits.turns import AT_ONCE, Turns
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from service.doors import PREDICTING, WRONG, bearer, keyed_app
from service.in_session import begin, post_groups
from service.inferring import post, tensors
from service.serving import (
    BASE_RATE,
    EXTRACTORS,
    VALUES,
    Running,
    changed,
    expected,
    logged,
    problem_in,
    running,
    small_model,
    timeless,
)
from waiting import until

PRIOR: dict[str, Any] = {"overload": "prior"}


@pytest.fixture(scope="module")
def http(service: Running) -> Iterator[httpx.Client]:
    """A client that keeps its connections alive."""
    with httpx.Client(base_url=service.url, timeout=30) as http:
        yield http


@pytest.fixture
def switch(app: AnytimeAPI, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The admission decision, which is no."""
    switch = Mock(return_value=False)
    monkeypatch.setattr(app.state.service.admission, "admits", switch)
    return switch


def is_refusal(response: httpx.Response) -> bool:
    problem = problem_in(response, 503)
    return (
        int(response.headers["retry-after"]) >= 1
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


def test_a_post_is_refused_and_its_connection_serves_the_next_request(
    service: Running, http: httpx.Client, switch: Mock
) -> None:
    before = shed(service, "refused")
    with logged() as records:
        for _ in range(3):
            assert is_refusal(http.post("/predict", json={"groups": VALUES}))
        assert is_refusal(http.post("/predict", content=b"x" * 90_000)), "whatever its body contains"
        switch.return_value = True
        answer = http.post("/predict", json={"groups": VALUES}).json()
        assert (answer["reason"], answer["prefix"]) == ("complete", 3)
    assert shed(service, "refused") - before == 4
    assert switch.call_count == 5, "one decision for each"
    assert not records


def test_a_post_is_refused_before_its_body_arrives(service: Running, switch: Mock) -> None:
    body = json.dumps({"groups": VALUES}).encode()
    with service.connect() as connection:
        for admits in (False, True):
            switch.return_value = admits
            connection.head(length=len(body))
            if not admits:
                assert connection.response()[1]["retry-after"] == "1"
            connection.send(body)
        assert connection.response()[0] == 200


def test_a_long_body_is_refused_by_its_head_while_others_wait_too_long_for_their_turn(
    http: httpx.Client, switch: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.return_value = True
    monkeypatch.setattr(Turns, "long_ms", 1e9)
    body = json.dumps({"groups": VALUES}).encode()
    assert http.post("/predict", content=body).status_code == 200
    assert is_refusal(http.post("/predict", content=body.ljust(AT_ONCE + 1)))
    monkeypatch.undo()
    assert http.post("/predict", content=body.ljust(AT_ONCE + 1)).status_code == 200


@pytest.fixture
def brief(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A service that admits no prediction, and waits 0.2 s for the rest of a body."""
    app = create_app(ModelRegistry.of([small_model()]), settings, tuning=Tuning(linger_s=0.2))
    monkeypatch.setattr(app.state.service.admission, "admits", lambda _: False)
    with running(app, settings) as service:
        yield service


def test_a_body_that_does_not_end_after_its_refusal_is_cut(brief: Running) -> None:
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


def test_an_inference_whose_body_does_not_arrive_is_refused_too(brief: Running) -> None:
    with brief.connect() as slow:
        slow.send(b"POST /v2/models/brake/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\n" + b" " * 20)
        status, headers, problem = slow.response()
        assert (status, headers["retry-after"], problem["error"]) == (503, "1", problem["detail"])
        assert slow.at_end()
    assert shed(brief, "refused") == 1
    assert brief.metric("anytime_held_bytes") == 0


def test_a_request_for_the_base_rate_is_answered_at_once(service: Running, switch: Mock, model: Model) -> None:
    before = shed(service, "prior"), shed(service, "refused")
    for rows in (1, 1, 1, 3):
        assert is_prior(service.post({"groups": VALUES if rows == 1 else {}}, **PRIOR, rows=rows).json(), rows)
    cheap = service.post({"groups": VALUES}, **PRIOR, budget=1).json()
    assert (cheap["reason"], cheap["budget"], cheap["missing"]) == ("overload", 1.0, ["speed"])
    none = service.post({"groups": VALUES}, **PRIOR, budget=0).json()
    assert (none["reason"], none["complete"], none["note"]) == ("budget", True, None), "the budget allows no group"
    assert (shed(service, "prior") - before[0], shed(service, "refused") - before[1]) == (6, 0)
    switch.return_value = True
    assert timeless(service.post({"groups": VALUES}, **PRIOR).json()) == expected(model, VALUES)


def test_a_stored_base_rate_depends_on_everything_in_the_head(http: httpx.Client, switch: Mock) -> None:
    for _ in range(2):  # computed, then stored
        packed = http.post("/predict", params=PRIOR, headers={"accept": "application/msgpack"})
        assert is_prior(msgspec.msgpack.decode(packed.content))
        assert is_prior(http.post("/predict", params=PRIOR).json())
        for parameters, headers, status, field in (
            ({"model": "break"}, {}, 404, "model"),
            ({"deadline": "1"}, {}, 422, "deadline"),
            ({}, {"grpc-timeout": "40"}, 422, "grpc-timeout"),
            ({}, {"content-type": "text/csv"}, 415, None),
            ({}, {"content-encoding": "gzip"}, 415, None),
        ):
            response = http.post("/predict", params=PRIOR | parameters, headers=headers)
            assert (response.status_code, response.json().get("field")) == (status, field)


def test_a_stored_base_rate_is_dropped_when_the_models_change(
    app: AnytimeAPI, service: Running, switch: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("v1", "v2"):
        monkeypatch.setattr(app.state.service, "registry", ModelRegistry.of([changed(small_model(), version=version)]))
        assert [service.post({}, **PRIOR).json()["version"] for _ in range(2)] == [version] * 2


def test_requests_that_the_application_refuses_receive_the_same_reply(
    service: Running, http: httpx.Client, switch: Mock
) -> None:
    body = json.dumps({"groups": VALUES}).encode()
    assert is_refusal(http.post("/predict", content=body, headers={"connection": "close"}))
    with service.connect() as old:
        old.send(b"POST /predict HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert old.response()[0] == 503
        assert old.at_end()
    with service.connect() as careful:
        careful.head(length=len(body), expect="100-continue")
        assert careful.response()[0] == 503
    with service.connect() as hasty:
        request = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        hasty.send(request * 5)
        assert [hasty.response()[0] for _ in range(5)] == [503] * 5
    with service.connect() as busy:
        switch.return_value = True
        busy.send(b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n")
        until(lambda: service.metric("anytime_open_predictions") == 1)
        switch.return_value = False
        busy.send(body.ljust(5_000) + request * 2)
        assert [busy.response()[0] for _ in range(3)] == [200, 503, 503]


def test_health_metrics_sessions_and_their_groups_are_never_shed(service: Running, switch: Mock) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready", "/models", "/"):
        assert service.get(path).status_code == 200
    assert post_groups(service, begin(service), VALUES).json()["prefix"] == 3
    assert switch.call_count == 0


@pytest.mark.parametrize("path", ["/sessions/{}/predict", "/predict?session={}"])
def test_the_prediction_of_a_session_is_shed_too(service: Running, http: httpx.Client, switch: Mock, path: str) -> None:
    session = begin(service)
    post_groups(service, session, VALUES)
    url = httpx.URL(path.format(session)).copy_merge_params(PRIOR)
    assert is_refusal(http.get(path.format(session)))
    prior = http.get(url).json()
    assert (prior["prediction"], prior["prefix"], prior["reason"]) == (BASE_RATE, 0, "overload")
    switch.return_value = True
    assert http.get(url).json()["prefix"] == 3, "the session has not changed"


@pytest.mark.parametrize("given", [True, False], ids=["given rows", "counted rows"])
def test_the_base_rate_of_a_session_has_the_rows_of_the_session(service: Running, switch: Mock, given: bool) -> None:
    session = begin(service, **({"rows": 3} if given else {}))
    if not given:
        post_groups(service, session, {"speed": [[1.0], [2.0], [3.0]]})
    for options in ({}, {"deadline_ms": 1_000}):
        answer = service.get(f"/sessions/{session}/predict", ranking="true", **PRIOR, **options).json()
        assert is_prior(answer, rows=3)
        assert sorted(answer["ranking"]) == [0, 1, 2]


def test_an_inference_may_request_the_base_rate_in_its_body_or_query(service: Running, switch: Mock) -> None:
    path = "/v2/models/brake/infer"

    def ask(query: str = "", **parameters: Any) -> httpx.Response:
        body: dict[str, Any] = {"inputs": tensors({"speed": [[2.0]]})}
        return service.post_to(path + query, body | ({"parameters": parameters} if parameters else {}))

    for response in (ask(), ask(overload="refuse"), ask(budget=3, overload=None)):
        assert is_refusal(response)
        assert response.json()["error"] == response.json()["detail"]
    for response in (ask("?overload=prior"), ask(overload="prior")):
        reply = response.json()
        assert reply["outputs"][0]["data"] == [BASE_RATE]
        assert (reply["parameters"]["prefix"], reply["parameters"]["reason"]) == (0, "overload")
    assert is_refusal(ask(overload="maybe")), "a refused body is not validated"
    body = json.dumps({"inputs": [], "parameters": {"overload": "prior"}}).encode()
    with service.connect() as connection:
        for content in (body, body.ljust(90_000)):
            head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
            for part in (head[:20].encode(), head[20:].encode(), content[:40], content[40:50], content[50:]):
                connection.send(part)
                sleep(0.002)
            status, _, reply = connection.response()
            assert (status, reply["parameters"]["reason"]) == (200, "overload")


def test_an_inference_may_request_the_base_rate_in_json_that_tensors_follow(service: Running, switch: Mock) -> None:
    tensor = {"name": "speed", "shape": [1, 1], "datatype": "FP64", "parameters": {"binary_data_size": 8}}
    for parameters, status in (({"overload": "prior"}, 200), ({}, 503)):
        content = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        with service.connect() as connection:
            connection.send(
                b"POST /v2/models/brake/infer HTTP/1.1\r\nHost: test\r\nContent-Type: application/octet-stream\r\n"
                b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(content), len(content) + 8)
            )
            connection.send(content)  # the tensor need not arrive
            assert connection.response()[0] == status


def test_an_inference_with_much_json_may_request_the_base_rate_in_its_query_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Settings(port=0)
    app = create_app(ModelRegistry.of([small_model()]), limits)
    monkeypatch.setattr(app.state.service.admission, "admits", lambda _: False)
    content = json.dumps({"inputs": [], "parameters": {"overload": "prior"}}).encode()
    with running(app, limits) as service:
        assert is_refusal(post(service, content.ljust(MAX_UNADMITTED + 1)))
        for answered in (
            post(service, content.ljust(MAX_UNADMITTED)),
            post(service, content.ljust(MAX_UNADMITTED + 1), overload="prior"),
        ):
            assert answered.json()["parameters"]["reason"] == "overload"


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_stream_receives_an_error_and_further_messages_of_the_prediction_are_dropped(
    service: Running, switch: Mock, model: Model, form: Form
) -> None:
    with service.stream(form) as stream:
        for name in (1, "two"):
            stream.say("begin", name)
            stream.groups(name, VALUES)
            stream.say("end", name)
            problem = stream.problem()
            assert (problem["id"], problem["status"]) == (name, 503)
        assert is_prior(stream.ask(3, VALUES, **PRIOR))
        switch.return_value = True
        stream.say("begin", 1)  # the same id: its prediction never began
        stream.groups(1, VALUES)
        assert timeless(stream.answer(1)) == expected(model, VALUES)
        stream.say("end", "three")
        assert "never begun" in stream.problem()["detail"], "an unknown id is an error"
    assert service.metric("anytime_open_predictions") == 0


@pytest.mark.parametrize("first", ["answered", "refused"])
def test_many_refused_ids_do_not_displace_an_answered_one_nor_the_other_way_round(
    first: str, service: Running, switch: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anytime_service.api.stream.IDS", 2)
    with service.stream() as stream:
        for name in (first, 1, 2, 3):
            switch.return_value = (name == first) == (first == "answered")
            stream.say("begin", name, deadline_ms=0)
            assert stream.hear()["id"] == name
        stream.groups(first, VALUES)  # too late, but no error
        stream.say("begin", first, deadline_ms=0)
        reply = stream.hear()
        status = reply.get("problem", {}).get("status")
        assert (reply["type"], status) == (("error", 409) if first == "answered" else ("answer", None))


def test_an_admitted_request_waits_until_it_has_had_its_turn(app: AnytimeAPI, service: Running, switch: Mock) -> None:
    switch.return_value = True
    body = json.dumps({"groups": VALUES}).encode()
    for query in ("", "?model=break", "?deadline_ms=5"):
        for _ in range(5):
            service.post_to(f"/predict{query}", {"groups": VALUES})
    for _ in range(5):
        with service.connect() as connection:
            connection.head(length=1_000)
            connection.send(body)
    for path in ("/sessions/none/predict", "/predict"):
        service.get(path)
    service.post_to("/v2/models/none/infer", {})
    until(lambda: app.state.service.admission.waiting == 0)


def test_a_refused_client_returns_the_base_rate_at_once(service: Running, switch: Mock) -> None:
    switch.return_value = True
    with Client(service.url) as client:
        client.warm_up(EXTRACTORS)
        assert client.run(EXTRACTORS, VALUES, 20_000).prefix == 3
        switch.return_value = False
        for overload in get_args(Overload):
            answer = client.run(EXTRACTORS, VALUES, 3_600_000, overload=overload)  # at once, not at the deadline
            assert (answer.prediction, answer.prefix, answer.reason) == (BASE_RATE, 0, "overload")
            assert "base rate" in str(answer.note)
        for deadline_ms in (5_000, None):
            with pytest.raises(ProblemError) as refused:
                client.predict(VALUES, deadline_ms=deadline_ms)
            assert refused.value.overloaded
        assert client.predict(VALUES, deadline_ms=5_000, overload="prior").reason == "overload"
        switch.return_value = True
        assert client.predict(VALUES, overload="prior").prefix == 3


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        lambda client: client.run(EXTRACTORS, VALUES, 5_000),
        lambda client: client.predict(VALUES, deadline_ms=5_000, overload="prior"),
    ],
)
def test_the_first_call_of_a_client_returns_the_base_rate_if_the_server_refuses(
    first: Callable[[Client], Answer], spares: bool, service: Running, switch: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(service.url) as client:
        monkeypatch.setattr(client._async._connection.throttle, "rejects", lambda: spares)
        answer = first(client)
        assert (answer.prediction, answer.prefix, answer.reason) == (BASE_RATE, 0, "overload")
        assert answer.note
        at_once = client.run(EXTRACTORS, VALUES, 0)
        assert (at_once.prediction, at_once.reason, at_once.note) == (BASE_RATE, "deadline", None)


def test_the_first_call_of_a_client_raises_if_the_server_refuses_even_the_base_rate(
    service: Running, switch: Mock, app: AnytimeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.return_value = True
    with Client(service.url) as client:
        client.predict(VALUES)  # connects
        monkeypatch.setattr(app.state.service, "draining", True)
        with pytest.raises(ProblemError, match="the service is stopping"):
            client.run(EXTRACTORS, VALUES, 5_000)


def test_a_client_sends_less_to_a_server_that_refuses(service: Running, switch: Mock) -> None:
    with Client(service.url) as client:
        for number in range(60):
            before = switch.call_count
            with pytest.raises(ProblemError) as refused:
                client.predict(VALUES, deadline_ms=5_000)
            assert refused.value.overloaded
            if switch.call_count == before:
                assert number >= 3
                assert "did not send this one" in refused.value.detail
        assert switch.call_count < 30
        before = switch.call_count
        answers = [client.predict(VALUES, deadline_ms=5_000, overload="prior") for _ in range(20)]
        assert {(answer.prediction, answer.reason) for answer in answers} == {(BASE_RATE, "overload")}
        assert switch.call_count < before + 10
        before = switch.call_count
        with pytest.raises(ProblemError):
            client.predict(VALUES)
        assert switch.call_count == before + 1, "a request without a deadline may wait for the server"
        switch.return_value = True
        while client.predict(VALUES, deadline_ms=5_000, overload="prior").reason == "overload":
            sleep(0.05)  # the throttle of the client decays


@pytest.mark.parametrize(("query", "shed"), [("", 503), ("?overload=prior", 200)])
def test_a_request_that_was_shed_before_is_401_once_its_key_is_removed(
    query: str, shed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(PREDICTING, encoding="utf-8")
    app, limits = keyed_app(tuning=Tuning(key_check_s=0.05), api_keys=(), api_keys_file=file)
    monkeypatch.setattr(app.state.service.admission, "admits", lambda _: False)
    with running(app, limits) as service, httpx.Client(base_url=service.url, timeout=30) as http:

        def status(key: str) -> int:
            return http.post(f"/predict{query}", json={"groups": VALUES}, headers=bearer(key)).status_code

        assert [status(PREDICTING) for _ in range(4)] == [shed] * 4
        assert status(WRONG) == 401
        file.write_text(WRONG, encoding="utf-8")
        until(lambda: status(WRONG) == shed)
        assert status(PREDICTING) == 401


def test_a_request_without_a_valid_key_is_401_and_does_not_reach_admission_control(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, limits = keyed_app()
    switch = Mock(return_value=False)
    monkeypatch.setattr(app.state.service.admission, "admits", switch)
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
            assert switch.call_count == 0
            status = http.request(method, path, headers=bearer(PREDICTING)).status_code
            assert (status, switch.call_count) == (200 if "prior" in path else 503, 1)
            switch.reset_mock()


def test_every_refusal_counts_as_a_problem_too(service: Running, http: httpx.Client, switch: Mock) -> None:
    before = service.metric("anytime_errors_total", kind="overloaded")
    for response in (
        service.post({"groups": VALUES}),
        service.post_to("/v2/models/brake/infer", {"inputs": []}),
        service.get("/predict", session="nobody"),
        http.post("/predict", headers={"connection": "close"}),
    ):
        assert is_refusal(response)
    with service.stream() as stream:
        stream.say("begin", 1)
        assert stream.problem()["status"] == 503
    assert service.metric("anytime_errors_total", kind="overloaded") - before == 5
