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
from anytime_service.limits.turns import AT_ONCE, Turns
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from service.in_session import begin
from service.serving import LINES, Running, expected, lines_of, packed, run_service, small_model, timeless
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


def posted(service: Running, path: str, content: Any, kind: str = JSON.media_type, **headers: str) -> httpx.Response:
    headers = {"content-type": kind, "accept": JSON.media_type, **headers}
    return service.post_to(path, content=content, headers=headers)


def test_long_values_give_the_same_answer_on_every_binding(service: Running) -> None:
    reported = expected(MODEL, LARGE, rows=None)
    body = json.dumps({"groups": LISTS}).encode()
    assert AT_ONCE < len(body) < LIMIT
    for content, kind in (
        (body, JSON.media_type),
        (MSGPACK.encode({"groups": LISTS}), MSGPACK.media_type),
        (lines_of(LISTS), LINES),
    ):
        assert timeless(posted(service, "/predict", content, kind).json()) == reported
    path = f"/sessions/{begin(service)}"
    assert service.post_to(f"{path}/groups", LISTS).status_code == 200
    assert timeless(service.get(f"{path}/predict").json()) == reported
    for data in (LISTS["hog"], LARGE["hog"].ravel().tolist()):
        tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": data}
        replied = service.post_to("/v2/models/brake/infer", {"inputs": [tensor]}).json()
        assert replied["outputs"][0]["data"] == reported["prediction"]
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            stream.say("begin", 1)
            stream.groups(1, LISTS)
            assert timeless(stream.end(1)) == reported


TOO_LARGE = {"hog": (LARGE["hog"].tolist() * 3)[:9_000]}
TWICE = {"hog": TOO_LARGE["hog"] * 2}
"""Too large in MessagePack, too."""
BODY = json.dumps({"groups": TOO_LARGE}).encode()
TENSOR = {"name": "hog", "shape": [9_000, 2], "datatype": "FP64", "data": TOO_LARGE["hog"]}
INFER = "/v2/models/brake/infer"


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("/predict", BODY, JSON.media_type),
        ("/predict", (BODY[:LIMIT], BODY[LIMIT:]), JSON.media_type),  # without a length
        ("/predict", MSGPACK.encode({"groups": TWICE}), MSGPACK.media_type),
        ("/predict", lines_of(TOO_LARGE)[:-1], LINES),
        ("/predict", lines_of(TOO_LARGE), LINES),
        ("/sessions", b" " * (LIMIT + 1), JSON.media_type),
        ("{session}/groups", json.dumps(TOO_LARGE).encode(), JSON.media_type),
        ("{session}/groups", MSGPACK.encode(TWICE), MSGPACK.media_type),
        (INFER, json.dumps({"inputs": [TENSOR]}).encode(), JSON.media_type),
    ],
    ids=range(9),
)
def test_lists_above_their_limit_are_refused(service: Running, path: str, content: Any, kind: str) -> None:
    body = iter(content) if isinstance(content, tuple) else content
    response = posted(service, path.format(session=f"/sessions/{begin(service)}"), body, kind)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (413, "urn:anytime:problem:body-too-large")
    assert str(LIMIT) in problem["detail"]
    assert ("bytes after the JSON" if path == INFER else "send MessagePack with packed values") in problem["detail"]


def test_packed_values_and_lines_together_may_be_above_the_limit_of_lists(service: Running) -> None:
    wide = {"hog": np.ones((9_000, 2)), "speed": np.ones((9_000, 1))}
    content = MSGPACK.encode({"groups": {name: packed(values) for name, values in wide.items()}})
    many = lines_of(LISTS) * 3
    assert min(len(content), len(many), len(BODY)) > LIMIT
    answer = posted(service, "/predict", content, MSGPACK.media_type).json()
    assert timeless(answer) == expected(MODEL, wide, rows=None)
    assert posted(service, "/predict", many, LINES).json()["replaced"] == ["hog"]
    announced = {"Inference-Header-Content-Length": str(LIMIT + 1)}
    assert posted(service, INFER, b" " * (LIMIT + 1), **announced).status_code == 413, "of the JSON before bytes"


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
            assert stream.end("p")["prefix"] == 2


def test_a_deadline_that_expires_before_the_turn_of_long_values_is_answered_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(_self: Turns, size: int = 0) -> None:
        await asyncio.sleep(0.1 if size > AT_ONCE else 0.0)

    monkeypatch.setattr(Turns, "turn", slow)
    tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": LISTS["hog"]}
    with run_service([MODEL], SETTINGS) as service, service.stream() as stream:
        answers = [stream.ask(1, LISTS, deadline_ms=50)]
        assert stream.ask(2, deadline_ms=0)["reason"] == "deadline", "what came too late was no error"
        for path, content, kind in (
            ("/predict", lines_of(LISTS), LINES),
            ("/predict", json.dumps({"groups": LISTS}).encode(), JSON.media_type),
            (INFER, json.dumps({"inputs": [tensor]}).encode(), JSON.media_type),
        ):
            reply = posted(service, f"{path}?deadline_ms=50", content, kind).json()
            answers.append(reply.get("parameters", reply))
        assert {(answer["reason"], answer["prefix"]) for answer in answers} == {("deadline", 0)}
        until(lambda: service.metric("anytime_held_bytes") == 0)
        assert service.metric("anytime_open_predictions") == 0
