"""The same row by every binding: one answer, that of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK
from lazily import Lazy
from models.properties import quick
from service.serving import (
    LIKELIHOODS,
    VALUES,
    Running,
    Stream,
    likelihood_model,
    packed,
    picky_model,
    small_model,
    timeless,
    trained_model,
)

MODELS: Mapping[str, Model] = Lazy(
    {
        "brake": small_model,
        "lens": trained_model,
        "picky": picky_model,
        "kind": lambda: small_model("kind", responses=3, classes=("car", "cyclist", "walker")),
        **{family: partial(likelihood_model, family) for family in LIKELIHOODS},
    }
)
Case = dict[str, Any]
PICKY = {"model": "picky", "policy": "best"}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Groups in some order, for one row or several, and the options."""
    rows = draw(st.integers(1, 3))
    number = st.floats(-1e6, 1e6, allow_subnormal=False) | st.none()
    names = draw(st.lists(st.sampled_from(list(VALUES)), unique=True))
    groups = {
        name: [[draw(number) for _ in VALUES[name]] for _ in range(rows)] for name in draw(st.permutations(names))
    }
    options = {
        "model": draw(st.sampled_from(list(MODELS))),
        "budget": draw(st.sampled_from([None, 0.0, 1.0, 4.5, 5.0, 9.0, 10.0])),
        "policy": draw(st.sampled_from(["prefix", "best", "arrived"])),
        "explain": draw(st.sampled_from([None, True])),
    }
    return {
        "rows": rows,
        "groups": groups,
        "options": {key: value for key, value in options.items() if value is not None},
    }


def by_stream(stream: Stream, name: int, case: Case, *, pack: bool) -> dict[str, Any]:
    stream.say("begin", name, rows=case["rows"], **case["options"])
    for group, values in case["groups"].items():
        stream.groups(name, {group: packed(values_of(values)) if pack else values})
    stream.say("end", name)
    return stream.answer(name)


def values_of(values: Any) -> Any:
    return np.array(values, dtype=float)


def by_session(client: httpx.Client, case: Case) -> dict[str, Any]:
    options = dict(case["options"])
    session = client.post("/sessions", json={"rows": case["rows"], "model": options.pop("model")}).json()["id"]
    for group, values in case["groups"].items():
        assert client.post(f"/sessions/{session}/groups", json={group: values}).status_code == 200
    answer: dict[str, Any] = client.get(f"/sessions/{session}/predict", params=options).json()
    assert client.delete(f"/sessions/{session}").status_code == 204
    return answer


def by_post(client: httpx.Client, case: Case) -> list[dict[str, Any]]:
    """As JSON, as MessagePack with packed values, and line by line."""
    # The number of rows stands in the query: a budget that buys nothing is answered before the body is read.
    query, groups = {**case["options"], "rows": case["rows"]}, case["groups"]
    whole = client.post("/predict", params=query, json={"groups": groups}).json()
    body = MSGPACK.encode({"groups": {name: packed(values_of(each)) for name, each in groups.items()}})
    reply = client.post("/predict", params=query, content=body, headers={"content-type": MSGPACK.media_type})
    lines = "".join(json.dumps({"group": name, "values": values}) + "\n" for name, values in groups.items())
    kind = {"content-type": "application/x-ndjson"}
    streamed = client.post("/predict", params=query, content=lines.encode(), headers=kind)
    return [whole, msgspec.msgpack.decode(reply.content), streamed.json()]


def test_the_same_row_gives_the_same_answer_by_every_binding_and_by_the_library(several: Running) -> None:
    count = 0
    with (
        several.stream(JSON) as text,
        several.stream(MSGPACK) as binary,
        httpx.Client(base_url=several.url, timeout=30) as client,
    ):

        @quick(max_examples=100)
        @example({"rows": 1, "groups": {n: [v] for n, v in VALUES.items()}, "options": {"model": "brake"}})
        @example({"rows": 1, "groups": {"hog": [[1.0, 2.0]]}, "options": {"model": "kind", "policy": "best"}})
        @example({"rows": 1, "groups": {n: [v] for n, v in VALUES.items()}, "options": PICKY | {"budget": 5.0}})
        @example({"rows": 2, "groups": {n: [v, v] for n, v in VALUES.items()}, "options": PICKY})
        @example({"rows": 1, "groups": {"hog": [[1.0, 2.0]]}, "options": {"model": "lens", "policy": "arrived"}})
        @example({"rows": 1, "groups": {"hog": [[1.0, 2.0]]}, "options": {"model": "poisson", "policy": "arrived"}})
        @example({"rows": 2, "groups": {"lab": [[0.5], [1e6]]}, "options": {"model": "binomial", "policy": "arrived"}})
        @example({"rows": 1, "groups": {"hog": [[1.0, 2.0]]}, "options": {"model": "multinomial", "policy": "arrived"}})
        @given(cases())
        def check(case: Case) -> None:
            nonlocal count
            count += 1
            answers = [
                by_stream(text, count, case, pack=False),
                by_stream(binary, count, case, pack=True),
                by_session(client, case),
                *by_post(client, case),
            ]
            assert {answer["reason"] for answer in answers} <= {"end", "budget", "complete"}
            assert len({answer["reason"] for answer in answers}) == 1
            replies = [timeless(answer) for answer in answers]
            assert all(each == replies[0] for each in replies)
            options = dict(case["options"])
            model = MODELS[options.pop("model")]
            prediction = Prediction(model, case["rows"])
            for name, values in case["groups"].items():
                prediction.add(name, values)
            answer = prediction.answer(options.pop("budget", None), **options)
            assert replies[0] == timeless(json.loads(JSON.encode(answer)))

        check()
