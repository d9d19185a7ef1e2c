"""Long lists of values: their limits, and the same numbers and errors as short ones."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import httpx
import numpy as np
import pytest

from anytime.inference.values import ElementError, numbers_of
from anytime_service.core.service import PredictionService
from anytime_service.errors import BodyTooLargeError
from anytime_service.limits.turns import AT_ONCE, Turns
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.values import ListLimits
from anytime_service.settings import Settings
from service.loops import run
from service.serving import Running, expected, packed, run_service, small_model, timeless
from waiting import until

MODEL = small_model()
ROWS = 4_000
LARGE = {name: np.round(np.random.default_rng(1).normal(size=(ROWS, 2)), 12) for name in ("hog",)}
LISTS = {"hog": LARGE["hog"].tolist()}
LIMIT = 200_000
SETTINGS = Settings(port=0, max_json_bytes=LIMIT, max_body_bytes=1_000_000)


def test_a_long_text_among_numbers_uses_no_memory_for_the_others() -> None:
    """An array of text would take 4 bytes a character for each of its elements, here 8 GB."""
    values: Any = [[0.5]] * 10_000 + [["x" * 200_000]]
    tracemalloc.start()
    try:
        with pytest.raises(ElementError) as error:
            numbers_of("speed", ("v",), {}, values)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert error.value.index == (10_000, 0)


@pytest.mark.parametrize(
    ("rows", "width", "allowed"), [(100, 500, True), (50_000, 1, True), (1, 50_001, False), (101, 500, False)]
)
def test_lists_in_json_hold_at_most_50_000_values(rows: int, width: int, allowed: bool) -> None:
    content, limits = JSON.encode([[0] * width] * rows), ListLimits(1 << 20, 50_000)
    for message in (content, content.decode()):
        if allowed:
            assert not limits.must_be_packed(JSON, message)
        else:
            with pytest.raises(BodyTooLargeError, match="values in lists of JSON; expected at most 50000; send Mess"):
                limits.must_be_packed(JSON, message)


def test_lists_in_messagepack_fit_if_as_many_numbers_do() -> None:
    limits = ListLimits(1 << 20, 50_000)
    assert not limits.must_be_packed(MSGPACK, MSGPACK.encode([0.5] * 49_990))
    assert limits.must_be_packed(MSGPACK, MSGPACK.encode([0.5] * 50_001))


def test_one_long_message_is_decoded_in_a_turn_of_the_loop() -> None:
    async def main() -> None:
        core = PredictionService(ModelRegistry.of([MODEL]), Settings(port=0))
        turns, done = 0, 0

        async def long() -> None:
            nonlocal done
            await core.turn(AT_ONCE + 1)
            done += 1

        waiting = [asyncio.create_task(long()) for _ in range(5)]
        while done < len(waiting):
            before = done
            await asyncio.sleep(0)
            turns += 1
            assert done - before <= 1
        assert turns >= len(waiting)

    run(main())


def posted(service: Running, path: str, content: bytes, kind: str = JSON.media_type) -> httpx.Response:
    return httpx.post(
        service.url + path, content=content, headers={"content-type": kind, "accept": JSON.media_type}, timeout=30
    )


def session_of(service: Running) -> str:
    return f"/sessions/{service.post_to('/sessions').json()['id']}"


def test_long_values_give_the_same_answer_on_every_binding(service: Running) -> None:
    told = expected(MODEL, LARGE, rows=None)
    body = json.dumps({"groups": LISTS}).encode()
    assert AT_ONCE < len(body) < LIMIT
    assert timeless(posted(service, "/predict", body).json()) == told
    packing = MSGPACK.encode({"groups": LISTS})
    assert timeless(posted(service, "/predict", packing, MSGPACK.media_type).json()) == told
    line = json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()
    assert timeless(posted(service, "/predict", line + b"\n", "application/x-ndjson").json()) == told
    path = session_of(service)
    assert posted(service, f"{path}/groups", json.dumps(LISTS).encode()).status_code == 200
    assert timeless(service.get(f"{path}/predict").json()) == told
    for data in (LISTS["hog"], LARGE["hog"].ravel().tolist()):
        tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": data}
        replied = service.post_to("/v2/models/brake/infer", {"inputs": [tensor]}).json()
        assert replied["outputs"][0]["data"] == told["prediction"]
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            stream.say("begin", 1)
            stream.groups(1, LISTS)
            stream.say("end", 1)
            assert timeless(stream.answer(1)) == told


TOO_LARGE = {"hog": (LARGE["hog"].tolist() * 3)[:9_000]}


def refused(response: httpx.Response, advice: str = "send MessagePack with packed values") -> None:
    problem = response.json()
    assert (response.status_code, problem["type"]) == (413, "urn:anytime:problem:body-too-large")
    assert str(LIMIT) in problem["detail"]
    assert advice in problem["detail"]


def test_lists_above_their_limit_are_refused_and_packed_values_are_not(service: Running) -> None:
    body, packing = json.dumps({"groups": TOO_LARGE}).encode(), MSGPACK.encode({"groups": TOO_LARGE})
    wide = {"hog": np.ones((9_000, 2))}
    told = expected(MODEL, wide, rows=None)
    bytes_of = {"groups": {"hog": packed(wide["hog"])}}
    packing = MSGPACK.encode({"groups": {"hog": TOO_LARGE["hog"] * 2}})
    assert min(len(body), len(packing)) > LIMIT
    refused(posted(service, "/predict", body))
    refused(httpx.post(f"{service.url}/predict", content=iter([body[:LIMIT], body[LIMIT:]]), timeout=30))  # no length
    refused(posted(service, "/predict", packing, MSGPACK.media_type))
    large = MSGPACK.encode({"groups": {"hog": packed(np.ones((20_000, 2)))}})
    assert len(large) > LIMIT
    assert "expected 1 to 10000" in posted(service, "/predict", large, MSGPACK.media_type).json()["detail"]
    assert timeless(posted(service, "/predict", MSGPACK.encode(bytes_of), MSGPACK.media_type).json()) == told
    path = session_of(service)
    refused(posted(service, f"{path}/groups", json.dumps(TOO_LARGE).encode()))
    refused(posted(service, f"{path}/groups", MSGPACK.encode({"hog": TOO_LARGE["hog"] * 2}), MSGPACK.media_type))
    refused(posted(service, "/sessions", b" " * (LIMIT + 1)))
    line = json.dumps({"group": "hog", "values": TOO_LARGE["hog"]}).encode()
    for end in (b"\n", b""):
        refused(posted(service, "/predict", line + end, "application/x-ndjson"))
    tensor = {"name": "hog", "shape": [9_000, 2], "datatype": "FP64", "data": TOO_LARGE["hog"]}
    refused(
        posted(service, "/v2/models/brake/infer", json.dumps({"inputs": [tensor]}).encode()), "bytes after the JSON"
    )
    announced = {"Inference-Header-Content-Length": str(LIMIT + 1)}
    content = b" " * (LIMIT + 1)
    refused(
        httpx.post(f"{service.url}/v2/models/brake/infer", content=content, headers=announced), "bytes after the JSON"
    )
    many = [json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()] * 3
    assert sum(map(len, many)) > LIMIT, "lines have the limit each, not together"
    assert posted(service, "/predict", b"\n".join(many), "application/x-ndjson").json()["replaced"] == ["hog"]


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_message_above_the_limit_is_refused_by_its_id_and_the_prediction_goes_on(
    service: Running, form: Form
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", "p")
        stream.groups("p", {"hog": TOO_LARGE["hog"] * 2})
        problem = stream.problem()
        assert (problem["id"], problem["status"]) == ("p", 413)
        assert "send MessagePack with packed values" in problem["detail"]
        if form is MSGPACK:
            stream.groups("p", {"hog": packed(np.ones((9_000, 2))), "speed": packed(np.ones((9_000, 1)), "f4")})
            stream.say("end", "p")
            assert stream.answer("p")["prefix"] == 2


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_long_message_that_cannot_be_names_the_place_and_changes_nothing(service: Running, form: Form) -> None:
    wrong = [list(row) for row in LISTS["hog"]]
    wrong[3_000][1] = "two"
    uneven = [*LISTS["hog"], [1.0]]
    with service.stream(form) as stream:
        stream.say("begin", 1)
        cases: list[tuple[Any, int, str]] = [
            (wrong, 422, "groups.hog[3000][1]"),
            (uneven, 422, "groups.hog"),
            ([[0, 0]] * 12_000, 422, "rows"),
        ]
        for values, status, field in cases:
            stream.groups(1, {"hog": values})
            problem = stream.problem()
            assert (problem["id"], problem["status"], problem["field"]) == (1, status, field), problem
        stream.say("group", 1, group="none", values=LISTS["hog"])
        assert "there is no group 'none'" in stream.problem()["detail"]
        if form is MSGPACK:
            stream.say("group", 1, group="hog", values=LISTS["hog"], dtype="f8")
            assert stream.problem()["field"] == "dtype"
        stream.say("end", 1)
        assert stream.answer(1)["groups"] == []
    if form is JSON:
        body = {"groups": {"hog": wrong}}
        problem = posted(service, "/predict", json.dumps(body).encode()).json()
        assert (problem["status"], problem["field"]) == (422, "groups.hog[3000][1]")
        line = json.dumps({"group": "hog", "values": wrong}).encode()
        problem = posted(service, "/predict", b"\n" + line, "application/x-ndjson").json()
        assert (problem["status"], problem["field"]) == (422, "groups.hog[3000][1]")
        assert problem["detail"] == "line 2: values of group 'hog': column 'h1' has 'two'; expected a number, or null"
        tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": wrong}
        problem = service.post_to("/v2/models/brake/infer", {"inputs": [tensor]}).json()
        assert (problem["status"], problem["field"]) == (422, "inputs[0].data[3000][1]")


@pytest.mark.parametrize("late", ["/predict", "/v2/models/brake/infer", "lines", "stream"])
def test_a_deadline_that_expires_before_the_turn_of_long_values_is_answered_in_time(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(_self: Turns, size: int = 0) -> None:
        await asyncio.sleep(0.1 if size > AT_ONCE else 0.0)

    monkeypatch.setattr(Turns, "turn", slow)
    with run_service([MODEL], SETTINGS) as service:
        if late == "stream":
            with service.stream() as stream:
                stream.say("begin", 1, deadline_ms=50)
                stream.groups(1, LISTS)
                answer = stream.answer(1)
                stream.say("begin", 2, deadline_ms=0)
                assert stream.answer(2)["reason"] == "deadline", "what came too late was no error"
        elif late == "lines":
            line = json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()
            answer = posted(service, "/predict?deadline_ms=50", line, "application/x-ndjson").json()
        elif late == "/predict":
            answer = posted(service, "/predict?deadline_ms=50", json.dumps({"groups": LISTS}).encode()).json()
        else:
            tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": LISTS["hog"]}
            reply = service.post_to(f"{late}?deadline_ms=50", {"inputs": [tensor]}).json()
            answer = {**reply["parameters"], "groups": json.loads(reply["parameters"]["groups"])}
        assert (answer["reason"], list(answer["groups"])) == ("deadline", [])
        until(lambda: service.metric("anytime_held_bytes") == 0)
        assert service.metric("anytime_open_predictions") == 0
