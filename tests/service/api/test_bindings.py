"""The same rows by every binding: one answer, that of the library."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import ROUTES
from anytime_service.schemas.catalogue import plan, summary
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from lazily import Lazy
from models.present import present
from models.properties import quick
from service.api.test_calibrated import CLASSES, NUMBERS, SHARES, sure
from service.api.test_pages import page_model
from service.browser import BONN, certified_regression, trips
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
    problem_in,
    run_service,
    running,
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
        httpx.Client(base_url=service.url, timeout=30) as client,
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


# Control of the service by requests.


def test_models_are_listed(service: Running) -> None:
    assert service.get("/models").json() == [
        {
            "name": "brake",
            "version": "v1",
            "task": "regression",
            "steps": 3,
            "groups": 4,
            "cost_unit": "ms",
            "total_cost": 10.0,
        }
    ]


def test_a_model_tells_its_steps_and_the_features_of_its_groups(service: Running) -> None:
    reported = service.get("/models/brake").json()
    assert [step["adds"] for step in reported["steps"]] == [["speed"], ["hog"], ["blood", "lab"]]
    assert set(reported["steps"][0]) == {
        "group",
        "adds",
        "cost",
        "cumulative_cost",
        "explained_variance",
        "r2",
        "cv_error",
        "alpha",
        "deviance",
    }
    assert {group["name"]: group["features"] for group in reported["groups"]}["hog"] == ["h0", "h1"]
    assert (reported["policies"], reported["certificate"]) == (["prefix"], None)
    sure = certified_regression()
    assert present(summary(sure, ["v1"]).certificate) == sure.manifest.certificate


def test_a_model_describes_its_columns_by_what_they_take() -> None:
    columns = {column.pop("name"): column for column in summary(trips(), ["v1"]).model_dump()["columns"]}
    assert list(columns)[:4] == ["port", "fare", "sex", "berths"]
    levels = (BONN, "Oslo", "Rome", "other")
    assert columns["port"] == {"group": "ticket", "type": "text", "levels": levels, "other": True, "range": None}
    assert columns["fare"] == {"group": "ticket", "type": "number", "levels": None, "other": False, "range": (0, 20)}
    assert (columns["sex"]["type"], columns["sex"]["other"]) == ("text", False)
    assert (columns["berths"]["type"], sorted(columns["berths"]["levels"])) == ("number", [1, 2, 4])
    assert (columns["wet"]["type"], sorted(columns["wet"]["levels"])) == ("bool", [False, True])


@pytest.mark.parametrize("path", ["", "/plan", "/sample", "/curve"])
def test_an_unknown_model_is_a_problem(service: Running, path: str) -> None:
    problem_in(service.get(f"/models/none{path}"), 404)


@pytest.mark.parametrize(
    ("parameters", "prefix", "compute"),
    [
        ({}, 0, [["speed"], ["hog"], ["blood", "lab"]]),
        ({"budget": 5}, 0, [["speed"], ["hog"]]),
        ({"budget": 0}, 0, []),
        ({"have": "speed"}, 1, [["hog"], ["blood", "lab"]]),
        ({"have": "speed, hog", "budget": 9}, 2, []),
        ({"have": ["speed", "blood"]}, 1, [["hog"], ["lab"]]),
        ({"have": "hog"}, 0, [["speed"], [], ["blood", "lab"]]),
        ({"have": ["lab", "hog"]}, 0, [["speed"], [], []]),
    ],
)
def test_a_plan_is_what_is_missing_in_order(
    service: Running, parameters: dict[str, Any], prefix: int, compute: list[list[str]]
) -> None:
    reported = service.get("/models/brake/plan", **parameters).json()
    assert reported["prefix"] == prefix
    assert [step["compute"] for step in reported["steps"]] == compute


def test_a_plan_tells_what_each_step_costs_and_buys(model: Model) -> None:
    _, hog, lab = model.manifest.steps
    reported = [
        (step.prefix, step.group, step.cost, step.spent, step.r2, step.cv_error)
        for step in plan(model, None, ["speed", "blood"]).steps
    ]
    assert reported == [(2, "hog", 4.0, 7.0, hog.r2, hog.cv_error), (3, "lab", 3.0, 10.0, lab.r2, lab.cv_error)]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"budget": -1}, "budget"),
        ({"budget": "nan"}, "budget"),
        ({"budget": "x"}, "budget"),
        ({"have": "none"}, "have"),
        *(({"rows": rows}, "rows") for rows in ("0", "-1", "1.5", "x", "10000000000")),
    ],
)
def test_a_plan_for_what_cannot_be_is_a_problem(service: Running, parameters: dict[str, Any], field: str) -> None:
    assert problem_in(service.get("/models/brake/plan", **parameters), 422)["field"] == field


def test_a_service_with_models_is_alive_and_ready(service: Running) -> None:
    assert service.get("/livez").json() == {"status": "ok"}
    assert service.get("/readyz").json() == {"status": "ok", "sessions": "memory"}
    for sessions, status in (("required", 200), ("wanted", 422)):
        assert service.get("/readyz", sessions=sessions).status_code == status


def test_a_service_without_models_is_alive_and_on_no_port_ready(settings: Settings) -> None:
    with run_service([], settings.model_copy(update={"metrics_port": 0})) as service:
        assert service.get("/livez").status_code == 200
        for response in (service.get("/readyz"), service.scrape("/readyz")):
            assert problem_in(response, 503)["detail"] == "no model is loaded"
        assert service.post({"groups": {}}).status_code == 404
        assert service.get("/v2/health/ready").status_code == 503


READY = [row.path.format(name="brake", version="v1") for row in ROUTES if "ready" in row.path]
"""Every route that reports readiness."""


def readiness(service: Running) -> set[tuple[str, int]]:
    """The status of each of these routes, also of the metrics port."""
    others = {"side": service.scrape("/readyz"), "head": httpx.head(f"{service.url}/readyz", timeout=30)}
    replies = {path: service.get(path) for path in READY} | others
    return {(path, reply.status_code) for path, reply in replies.items()}


def test_a_stopping_service_is_ready_on_no_route(model: Model, settings: Settings) -> None:
    settings = settings.model_copy(update={"metrics_port": 0})
    app = create_app(ModelRegistry.of([model]), settings)
    assert len(READY) >= 4
    with running(app, settings) as server:
        for draining, status in ((False, 200), (True, 503), (False, 200), (True, 503)):
            app.state.service.draining = draining
            assert {found for _, found in readiness(server)} == {status}
        assert server.get("/v2/models/none/ready").status_code == 404
        assert server.get("/v2/health/ready").json()["error"] == server.get("/readyz").json()["detail"]
        live = server.get("/v2/health/live")
        assert (live.status_code, live.json()) == (200, {"live": True, "ready": False})
        assert server.get("/livez").status_code == 200
