"""Load shedding on every binding: predictions that are not admitted are refused, or answered with the base rate."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from select import select
from time import sleep
from typing import Any, get_args
from unittest.mock import Mock

import httpx
import msgspec
import pytest
from hypothesis import given, strategies as st
from websockets.frames import Opcode

from anytime.errors import AnytimeError
from anytime.inference.prediction import Answer, Prediction
from anytime.model.model import Model
from anytime.types import Overload
from anytime_service.api.oip import MAX_UNADMITTED
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.client import Client, ProblemError
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import checked_groups
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import OverloadedError
from anytime_service.keys import KEY, KeyRing, read_keys
from anytime_service.limits.memory import Account, Accounts
from anytime_service.limits.tuning import Tuning
from anytime_service.limits.turns import AT_ONCE, Turns
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.options import PredictionOptions
from anytime_service.sessions.store import MemorySessions
from anytime_service.settings import Settings
from models.properties import quick
from service.doors import PREDICTING, WRONG, bearer, keyed_app
from service.in_session import begin, post_groups
from service.inferring import post, tensors
from service.loops import run
from service.raw_stream import raw, read_frame, text
from service.redis_server import RedisServer
from service.serving import (
    BASE_RATE,
    EXTRACTORS,
    VALUES,
    Collecting,
    Running,
    changed,
    expected,
    logged,
    problem_in,
    running,
    small_model,
    timeless,
)
from waiting import WAIT_S, until

PRIOR: dict[str, Any] = {"overload": "prior"}


@pytest.fixture(scope="module")
def http(service: Running) -> Iterator[httpx.Client]:
    """A client that keeps its connections alive."""
    with httpx.Client(base_url=service.url, timeout=60) as http:
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
            ({}, {"grpc-timeout": "40ms"}, 422, "grpc-timeout"),
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
    with running(app, limits) as service, httpx.Client(base_url=service.url, timeout=60) as http:

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
    with running(app, limits) as service, httpx.Client(base_url=service.url, timeout=60) as http:
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


# Shares of the limits: one key cannot use everything, and what it uses is counted exactly.


ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
BOTH = f"{ANN},{BOB}"
MODEL = small_model()


def test_a_single_key_may_use_the_full_limits() -> None:
    for listed in (ANN, f"{ANN},admin:{ANN}"):  # one key in two scopes
        keys = KeyRing(read_keys(listed))
        account = Accounts(Account(100), 0.5, keys).of_key(keys.current[0])
        account.check(100)
        assert (account.fits(100), bool(account.share_exhausted(1_000, 10))) == (True, False)
        with pytest.raises(OverloadedError, match="limit of 100"):
            account.check(101)


def test_a_share_is_at_least_one_and_its_refusal_names_the_share_and_no_key() -> None:
    keys, held = KeyRing(read_keys(BOTH)), Account(100)
    accounts = Accounts(held, 0.25, keys)
    account = accounts.of_key(keys.current[0])
    assert (account.share(100), account.share(2)) == (25, 1)
    account.add(20)
    assert (account.fits(5), account.fits(6), held.bytes) == (True, False, 20)
    with pytest.raises(
        OverloadedError, match=r"this API key has 20 bytes stored, and 6 more .* share, 25 of 100"
    ) as why:
        account.check(6, "groups")
    assert why.value.field == "groups"
    assert "ann" not in str(why.value)
    accounts.of_key(keys.current[1]).check(25)
    accounts.anonymous.add(78)
    with pytest.raises(OverloadedError, match="limit of 100"):
        account.check(4)
    assert accounts.of({KEY: keys.current[0]}) is account
    assert accounts.of({}) is accounts.anonymous
    assert account.owner != accounts.of_key(keys.current[1]).owner


def test_a_second_key_halves_the_share_of_the_first_and_a_removed_key_keeps_its_account(tmp_path: Path) -> None:
    file, held = tmp_path / "keys", Account(100)
    file.write_text(ANN)
    keys = KeyRing((), file)
    (ann,) = keys.current
    accounts = Accounts(held, 0.5, keys)
    account = accounts.of_key(ann)
    assert accounts.of_key(read_keys(f"admin:{ANN}")[0]) is account, "a key is one, however often it is read"
    account.add(80)
    file.write_text(f"{ANN}\n{BOB}\n")
    keys.read()
    assert not account.fits(1)
    file.write_text(BOB)
    keys.read()
    assert accounts.of_key(ann) is account, "as long as something is counted on it"
    account.add(-80)
    assert held.bytes == 0
    del account
    gc.collect()
    assert len(accounts._all) == 0


class Steps:
    """Random steps of two keys and of requests without one, in process."""

    def __init__(self) -> None:
        self.keys = KeyRing(read_keys(BOTH))
        settings = Settings(max_open=6, max_held_bytes=400, max_sessions=4)
        self.service = PredictionService(ModelRegistry.of([MODEL]), settings, keys=self.keys)
        self.sessions = MemorySessions(4, 60.0)
        self.accounts = [*map(self.service.accounts.of_key, self.keys.current), self.service.memory]
        self.lives: list[Any] = []
        self.joined: set[Any] = set()
        self.names: list[str] = []

    async def step(self, kind: str, who: int, which: int) -> None:
        account, group = self.accounts[who], sorted(VALUES)[which % 3]
        live = self.lives[which % len(self.lives)] if self.lives else None
        name = self.names[which % len(self.names)] if self.names else ""
        with suppress(AnytimeError):  # refused: out of turn, over a limit, gone
            if kind == "open":
                self.lives.append(self.open(account))
            elif kind == "create":
                self.names.append(await self.sessions.create(MODEL, None, account))
            elif kind == "take":
                await (await self.sessions.get(name)).add_groups({group: [VALUES[group]] * (1 + which % 2)})
            elif kind == "wait":
                async with self.sessions.read(name, None, account) as session:
                    self.lives.append(self.open(account, session.prediction))
                    self.joined.add(self.lives[-1])
                    if not self.lives[-1].answered:
                        session.join(self.lives[-1])
            elif kind == "delete":
                await self.sessions.delete(name)
            elif kind == "rotate":
                self.keys.several = not self.keys.several
            elif kind == "group":
                if live is not None and live not in self.joined:  # a session receives its groups itself
                    live.groups(checked_groups(live.machine.prediction, {group: VALUES[group]}))
            elif live is not None:
                getattr(live, kind)(*([ValueError()] if kind == "fail" else []))

    def open(self, account: Account, shared: Prediction | None = None) -> ActivePrediction:
        options = PredictionOptions(deadline_ms=5_000)
        return self.service.open(options, now_ms(), Collecting(), shared=shared, account=account)

    def check(self) -> None:
        core = self.service
        assert sum(account.bytes for account in self.accounts[:-1]) <= core.memory.bytes
        assert set().union(*(account.active for account in self.accounts)) == core.active
        assert sum(len(account.active) for account in self.accounts) == len(core.active) <= 6
        assert sum(account.sessions for account in self.accounts) == len(self.sessions) <= 4
        assert 0 <= core.memory.bytes <= 400


KINDS = ("open", "group", "end", "drop", "drain", "fail", "create", "take", "wait", "delete", "rotate")
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 5)), max_size=40)


@quick(max_examples=400)
@given(steps)
def test_use_by_key_is_counted_exactly_and_is_zero_at_the_end(events: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        these = Steps()
        for kind, who, which in events:
            await these.step(kind, who, which)
            these.check()
        for live in these.lives:
            live.drop()
        for name in these.names:
            with suppress(AnytimeError):
                await these.sessions.delete(name)
        these.check()
        assert (these.service.memory.bytes, len(these.service.active), len(these.sessions)) == (0, 0, 0)
        assert all((each.bytes, len(each.active), each.sessions) == (0, 0, 0) for each in these.accounts)
        await these.sessions.close()

    run(main())


@contextmanager
def served(**limits: Any) -> Iterator[tuple[Running, PredictionService]]:
    """A service with two keys, and its core."""
    settings = Settings(port=0, api_keys=BOTH, session_store_timeout_ms=5_000, **limits)
    app = create_app(ModelRegistry.of([MODEL]), settings)
    with running(app, settings) as service:
        yield service, app.state.service


def used(core: PredictionService) -> tuple[int, int, int]:
    """What the core counts: bytes, open predictions, accounts."""
    gc.collect()
    return core.memory.bytes, len(core.active), len(core.accounts._all)


Opener = Callable[[Running, PredictionService, str, ExitStack], Any]
"""Opens a prediction until the end of the stack; returns the problem if it is refused, else None."""


def by_stream(service: Running, _: PredictionService, key: str, stack: ExitStack) -> Any:
    stream = stack.enter_context(service.stream(additional_headers=bearer(key)))
    stream.say("begin", 1, deadline_ms=9_000)
    stream.say("end", "never begun")
    problem = stream.problem()
    return problem if problem["id"] == 1 else None


def by_request(line: str, service: Running, core: PredictionService, key: str, stack: ExitStack) -> Any:
    """Send a request whose body does not arrive; a GET waits at a session of the other key."""
    session = service.post_to("/sessions", headers=bearer(BOB)).json()["id"] if line.startswith("GET") else ""
    before, connection = len(core.active), stack.enter_context(service.connect())
    head = f"{line.format(session)}?deadline_ms=9000 HTTP/1.1\r\nHost: test\r\nContent-Length: 10000\r\n"
    connection.send(f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
    until(lambda: len(core.active) > before or bool(select([connection.sock], [], [], 0)[0]))
    return None if len(core.active) > before else connection.response()[2]


@pytest.mark.parametrize("line", ["stream", "POST /predict", "POST /v2/models/brake/infer", "GET /sessions/{}/predict"])
def test_one_key_opens_at_most_its_share_over_any_binding(line: str) -> None:
    open_one: Opener = by_stream if line == "stream" else partial(by_request, line)
    with served(max_open=4) as (service, core):
        with ExitStack() as stack:
            assert [open_one(service, core, ANN, stack) for _ in range(2)] == [None, None]
            until(lambda: len(core.active) == 2)
            problem = open_one(service, core, ANN, stack)
            assert (problem["status"], problem["type"]) == (503, "urn:anytime:problem:overloaded")
            assert "this API key has 2 open predictions, and its share is 2 of 4" in problem["detail"]
            assert open_one(service, core, BOB, stack) is None, "the other key is served"
            until(lambda: len(core.active) == 3)
        until(lambda: not core.active)
        with ExitStack() as stack:
            assert open_one(service, core, ANN, stack) is None, "what has ended is not counted"
        until(lambda: used(core) == (0, 0, line.startswith("GET")))  # the account of the sessions


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory"
    redis: RedisServer = request.getfixturevalue("shared_redis")
    redis.execute("FLUSHDB", database=6)
    return redis.url(6)


def test_one_key_begins_at_most_its_share_of_sessions(store: str) -> None:
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(served(max_sessions=5, session_store=store, session_ttl_s=600))[0]
            for _ in range(1 if store == "memory" else 2)
        ]

        def begin(key: str) -> httpx.Response:
            replicas.append(replicas.pop(0))
            return replicas[0].post_to("/sessions", headers=bearer(key))

        def names(key: str) -> list[str]:
            return [begin(key).json()["id"] for _ in range(2)]

        of_ann = names(ANN)
        for _ in range(2):  # at each replica
            refused = begin(ANN)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "this API key has 2 sessions, and its share is 2 of 5" in refused.json()["detail"]
        of_bob = names(BOB)
        assert "share" in begin(BOB).json()["detail"]
        path = f"/sessions/{of_ann[0]}"
        assert replicas[0].post_to(f"{path}/groups", VALUES, headers=bearer(BOB)).status_code == 200
        for name, key in ((of_ann[0], BOB), (of_ann[1], ANN), (of_bob[0], ANN)):  # any key may end a session
            assert httpx.delete(f"{replicas[0].url}/sessions/{name}", headers=bearer(key)).status_code == 204
        assert len(names(ANN)) == 2
        assert begin(BOB).status_code == 201


def test_expired_sessions_of_a_key_are_not_counted(store: str) -> None:
    with served(max_sessions=2, session_store=store, session_ttl_s=1.0) as (service, _):
        assert service.post_to("/sessions", headers=bearer(ANN)).status_code == 201
        assert service.post_to("/sessions", headers=bearer(ANN)).status_code == 503
        until(lambda: service.post_to("/sessions", headers=bearer(ANN)).status_code == 201)


def test_a_damaged_count_of_a_keys_sessions_in_redis_is_corrected(shared_redis: RedisServer) -> None:
    shared_redis.execute("FLUSHDB", database=6)
    with served(max_sessions=4, session_store=shared_redis.url(6)) as (service, core):
        owner = core.accounts.of_key(read_keys(ANN)[0]).owner
        shared_redis.execute("SET", f"anytime:sessions:{owner}", "something", database=6)
        for status in (201, 201, 503):
            assert service.post_to("/sessions", headers=bearer(ANN)).status_code == status
        assert ANN.encode() not in b"".join(shared_redis.execute("KEYS", "*", database=6))


def test_one_key_stores_at_most_its_share_of_bytes() -> None:
    with served(max_held_bytes=4_000, max_rows=100) as (service, core):
        with ExitStack() as stack:
            half = text({"type": "begin", "id": 1, "model": "x" * 1_900})[:1_800]
            stack.enter_context(raw(service, key=ANN)).send(half)
            until(lambda: 1_700 < core.memory.bytes <= 1_800)
            other = stack.enter_context(raw(service, key=ANN))
            other.send(half)
            opcode, content = read_frame(other)
            assert (opcode, content[2:19]) == (Opcode.CLOSE, b"this API key has ")
            body = service.post_to("/predict", headers=bearer(ANN), content=b" " * 1_000)
            assert (body.status_code, "its share, 2000 of 4000 bytes" in body.json()["detail"]) == (503, True)
            stream = stack.enter_context(service.stream(additional_headers=bearer(ANN)))
            stream.say("begin", 1)
            stream.groups(1, {"speed": [[1.0]] * 50})
            assert stream.problem()["field"] == "groups.speed"
            answered = service.post_to("/predict", {"groups": {"speed": [[1.0]] * 50}}, headers=bearer(BOB))
            assert answered.status_code == 200, "the other key has its own share"
        until(lambda: used(core) == (0, 0, 0))


def test_a_key_removed_with_open_predictions_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{ANN}\n{BOB}\n")
    settings = Settings(port=0, api_keys_file=file, max_open=4, max_sessions=4, session_ttl_s=2)
    app = create_app(ModelRegistry.of([MODEL]), settings, tuning=Tuning(key_check_s=0.05))
    core: PredictionService = app.state.service
    with running(app, settings) as service, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        with service.stream(additional_headers=bearer(ANN)) as stream:
            stream.say("begin", 1, deadline_ms=9_000)
            stream.groups(1, {"speed": [2.0]})
            path = service.post_to("/sessions", headers=bearer(ANN)).headers["location"]
            assert service.post_to(f"{path}/groups", {"speed": [2.0]}, headers=bearer(ANN)).status_code == 200
            client = stack.enter_context(httpx.Client(base_url=service.url, headers=bearer(ANN), timeout=WAIT_S))
            waiting = threads.submit(client.get, f"{path}/predict?deadline_ms=1500")
            until(lambda: len(core.active) == 2)
            file.write_text(BOB)
            assert stream.answer(1)["reason"] == "draining"
            assert waiting.result(60).json()["reason"] == "deadline", "a request that was let in is answered"
        until(lambda: len(app.state.sessions) == 0)
        until(lambda: used(core) == (0, 0, 0))
        opened = [by_stream(service, core, BOB, stack) for _ in range(4)]
        assert opened == [None] * 4, "the only remaining key may use everything"
