"""The same rows by every binding: one answer, that of the library."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import msgspec
import numpy as np
from hypothesis import example, given, strategies as st

from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK
from lazily import Lazy
from models.properties import quick
from service.api.test_calibrated import CLASSES, NUMBERS, SHARES, sure
from service.api.test_control import page_model
from service.serving import (
    LIKELIHOODS,
    VALUES,
    Running,
    Stream,
    columns_model,
    expected,
    likelihood_model,
    packed,
    picky_model,
    small_model,
    timeless,
    trained_model,
)

MODELS: Lazy[str, Model] = Lazy(
    {
        "brake": small_model,
        "lens": lambda: sure(trained_model(), *NUMBERS),
        "picky": picky_model,
        "kind": lambda: sure(small_model("kind", responses=3, classes=CLASSES), *SHARES),
        "pages": lambda: page_model("pages"),
        "liner": columns_model,
        **{family: partial(likelihood_model, family) for family in LIKELIHOODS},
    }
)
LEVELS: dict[str, list[Any]] = {
    "sex": ["male", "female", "x"],
    "paid": [True, False],
    "port": ["Oslo", "Århus", "Bonn"],
    "cabin": [17, 3, 99],
    "town": ["Bonn", "bonn"],
}
"""Levels of the columns that have some, and others."""
Case = dict[str, Any]
EVERY = {name: [values] for name, values in VALUES.items()}
HOG = {"hog": [[1.0, 2.0]]}
PICKY = {"model": "picky", "policy": "best"}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Groups of a model in some order, for one row or several, and the options."""
    name, rows = draw(st.sampled_from(list(MODELS))), draw(st.integers(1, 3))
    columns = {group: place.features for group, place in MODELS[name].places.items()}

    def cell(column: str) -> Any:
        numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
        return draw(st.none() | (st.sampled_from(LEVELS[column]) if column in LEVELS else numbers))

    groups = {
        group: [[cell(column) for column in columns[group]] for _ in range(rows)]
        for group in draw(st.lists(st.sampled_from(list(columns)), unique=True))
    }
    options = {
        "model": name,
        "budget": draw(st.sampled_from([None, 0.0, 1.0, 4.5, 5.0, 9.0, 10.0])),
        "policy": draw(st.sampled_from(["prefix", "best", "arrived"])),
        "explain": draw(st.sampled_from([None, True])),
    }
    return {
        "rows": rows,
        "groups": groups,
        "options": {key: value for key, value in options.items() if value is not None},
    }


def compact(values: list[list[Any]]) -> Any:
    """Values as MessagePack has them: packed if all are numbers."""
    numbers = all(cell is None or isinstance(cell, float) for row in values for cell in row)
    return packed(np.array(values, dtype=float)) if numbers else values


def by_stream(stream: Stream, name: int, case: Case) -> dict[str, Any]:
    stream.say("begin", name, rows=case["rows"], **case["options"])
    for group, values in case["groups"].items():
        stream.groups(name, {group: compact(values) if stream.form is MSGPACK else values})
    return stream.end(name)


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
    body = MSGPACK.encode({"groups": {name: compact(each) for name, each in groups.items()}})
    reply = client.post("/predict", params=query, content=body, headers={"content-type": MSGPACK.media_type})
    lines = "".join(json.dumps({"group": name, "values": values}) + "\n" for name, values in groups.items())
    kind = {"content-type": "application/x-ndjson"}
    streamed = client.post("/predict", params=query, content=lines.encode(), headers=kind)
    return [whole, msgspec.msgpack.decode(reply.content), streamed.json()]


def test_the_same_rows_give_the_same_answer_by_every_binding_and_by_the_library(service: Running) -> None:
    count = 0
    with (
        service.stream(JSON) as text,
        service.stream(MSGPACK) as binary,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):

        @quick(max_examples=150)
        @example({"rows": 1, "groups": EVERY, "options": {"model": "brake"}})
        @example({"rows": 1, "groups": HOG, "options": {"model": "kind", "policy": "best"}})
        @example({"rows": 1, "groups": EVERY, "options": PICKY | {"budget": 5.0}})
        @example({"rows": 2, "groups": {n: [v, v] for n, v in VALUES.items()}, "options": PICKY})
        @example({"rows": 1, "groups": HOG, "options": {"model": "lens", "policy": "arrived"}})
        @example({"rows": 1, "groups": EVERY, "options": {"model": "lens"}})
        @example({"rows": 1, "groups": EVERY, "options": {"model": "kind", "explain": True}})
        @example({"rows": 3, "groups": {n: [v] * 3 for n, v in VALUES.items()}, "options": {"model": "pages"}})
        @example({"rows": 1, "groups": {"person": [[900.0, "male"]]}, "options": {"model": "liner"}})
        @example({"rows": 1, "groups": HOG, "options": {"model": "poisson", "policy": "arrived"}})
        @example({"rows": 2, "groups": {"lab": [[0.5], [1e6]]}, "options": {"model": "binomial", "policy": "arrived"}})
        @example({"rows": 1, "groups": HOG, "options": {"model": "multinomial", "policy": "arrived"}})
        @given(cases())
        def check(case: Case) -> None:
            nonlocal count
            count += 1
            answers = [
                by_stream(text, count, case),
                by_stream(binary, count, case),
                by_session(client, case),
                *by_post(client, case),
            ]
            assert {answer["reason"] for answer in answers} in ({"end"}, {"budget"}, {"complete"})
            options = dict(case["options"])
            literal = expected(MODELS[options.pop("model")], case["groups"], rows=case["rows"], **options)
            assert [timeless(answer) for answer in answers] == [literal] * len(answers)

        check()
