from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime.cli.main import main
from anytime.costs.distributions import CostDistributions
from anytime.groups import load_groups
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.client import Client
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import ROUTES
from anytime_service.schemas.catalogue import plan, summary
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from lazily import Lazy
from models.present import present
from service.browser import BONN, certified_regression, trips
from service.in_session import begin, post_groups
from service.serving import (
    GROUPS,
    LINES,
    VALUES,
    Running,
    changed,
    chunk,
    lines_of,
    packed,
    problem_in,
    run_service,
    running,
    small_model,
)
from waiting import until


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
    others = {"side": service.scrape("/readyz"), "head": httpx.head(f"{service.url}/readyz", timeout=60)}
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


# Predictions of many rows: their total cost, the plan for them, and the rows of measured calls.


SETTINGS = Settings(port=0)
COSTS: dict[str, Any] = {"speed": 1.0, "hog": {"fixed": 60.0, "per_row": 3.4}, "blood": {"fixed": 200.0}, "lab": 3.0}
ROWS = 100


def page_model(name: str = "brake") -> Model:
    """The small model at costs of calls, which are those of its steps for pages of a hundred rows."""
    groups = [{**each, "cost": COSTS[each["name"]]} for each in GROUPS["groups"]]
    return changed(small_model(name), groups=load_groups(GROUPS | {"rows": ROWS, "groups": groups}))


MODELS = Lazy({"brake": page_model})


def page(group: str, rows: int) -> list[list[float]]:
    return [VALUES[group]] * rows


def total(*groups: str, rows: int) -> float:
    """The literal sum of the costs of some groups."""
    found = 0.0
    for name in groups:
        cost = COSTS[name]
        found += cost["fixed"] + cost.get("per_row", 0.0) * rows if isinstance(cost, dict) else cost * rows
    return found


@pytest.mark.parametrize("rows", [1, 3, ROWS])
def test_an_answer_states_the_cost_of_all_rows(service: Running, rows: int) -> None:
    values = {name: page(name, rows) for name in VALUES}
    for budget, groups in ((0, ()), (5, ("speed", "hog")), (10, ("speed", "hog", "blood", "lab"))):
        answer = service.post({"groups": values}, budget=budget).json()
        assert (answer["cost"], answer["cost_total"]) == (budget, pytest.approx(total(*groups, rows=rows)))


def test_a_plan_states_the_costs_of_the_rows_that_are_requested(service: Running) -> None:
    for rows in (1, 7, ROWS):
        steps = service.get("/models/brake/plan", rows=rows, have="speed").json()["steps"]
        totals = [total("hog", rows=rows), total("blood", "lab", rows=rows)]
        assert [step["cost_total"] for step in steps] == pytest.approx(totals)
        spent = [total("speed", "hog", rows=rows), total("speed", "hog", "blood", "lab", rows=rows)]
        assert [step["spent_total"] for step in steps] == pytest.approx(spent)
        assert [step["cost"] for step in steps] == pytest.approx([4.0, 5.0]), "per row, as budgets are"
    reply = service.get("/models/brake/plan").json()
    assert reply["rows"] == ROWS, "the number that the model's costs are for"
    assert reply["steps"][1]["cost_total"] == pytest.approx(ROWS * reply["steps"][1]["cost"])
    with Client(service.url) as client:
        found = client.plan(rows=7)
        assert (found.rows, found.steps[0].cost_total) == (7, 7.0)
        assert client.plan() == plan(page_model(), None, ())
        assert client.model().rows == ROWS


def measured(service: Running, group: str, label: str) -> tuple[float, float]:
    """Calls of a group with a range of rows, and their rows."""
    labels = {"model": "brake", "group": group, "rows": label}
    calls = service.metric("anytime_group_seconds_count", **labels)
    return calls, service.metric("anytime_group_rows_total", **labels)


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_rows_of_groups_are_counted_on_a_stream_also_of_late_ones(fresh: Running, form: Form) -> None:
    with fresh.stream(form) as stream:
        stream.say("begin", 1)
        stream.say("group", 1, group="speed", values=page("speed", 5), took_ms=1)
        stream.end(1)
        stream.say("group", 1, group="lab", values=[], took_ms=1)
        until(lambda: measured(fresh, "lab", "4-7") == (1, 5))
        stream.ask(2, deadline_ms=0)
        stream.say("group", 2, group="speed", values=page("speed", 9), took_ms=1)
        stream.say("group", 2, group="hog", values=[], took_ms=1)
        until(lambda: measured(fresh, "hog", "8-15") == (1, 9))
        late = packed(page("hog", 17)) if form is MSGPACK else {"values": []}
        stream.ask(3, rows=17, deadline_ms=0)
        stream.say("group", 3, group="hog", took_ms=1, **late)
        until(lambda: measured(fresh, "hog", "16-31") == (1, 17))
    assert (measured(fresh, "speed", "4-7"), measured(fresh, "speed", "8-15")) == ((1, 5), (1, 9))


def test_rows_of_groups_are_counted_in_lines_and_sessions(fresh: Running) -> None:
    with fresh.connect() as connection:
        connection.head("budget=1", content_type=LINES)
        for name in VALUES:
            connection.send(chunk(lines_of({name: page(name, 3)}, took_ms=1)))
        connection.send(b"0\r\n\r\n")
        assert connection.response()[2]["cost_total"] == 3.0
        until(lambda: measured(fresh, "lab", "2-3") == (1, 3))
    post_groups(fresh, begin(fresh), {"hog": page("hog", 64)})
    assert measured(fresh, "hog", "64-127") == (1, 64)
    assert measured(fresh, "speed", "2-3") == (1, 3)


def test_costs_are_learned_per_row_from_calls_of_any_size(fresh: Running, tmp_path: Path) -> None:
    page_model().save(tmp_path / "brake.safetensors")
    with fresh.stream() as stream:
        for i, rows in enumerate([1, 100, 500] * 10):
            stream.say("begin", i, rows=rows)
            for name, took_ms in {"speed": 0.1 * rows, "hog": 3 + 0.02 * rows, "lab": 7.0}.items():
                stream.say("group", i, group=name, values=page(name, rows), took_ms=took_ms)
            stream.answer(i)
    model, learned, table = (str(tmp_path / name) for name in ("brake.safetensors", "learned.yaml", "times.json"))
    arguments = ["--from", fresh.url, "--model", model, "--out", learned]
    assert main(["costs", *arguments, "--distributions", table]) == 0
    found = load_groups(learned)
    costs = {group.name: group.call_cost for group in found.groups}
    assert (costs["speed"].fixed, costs["speed"].per_row) == pytest.approx((0, 0.1), abs=1e-4)
    assert (costs["hog"].fixed, costs["hog"].per_row) == pytest.approx((3, 0.02), rel=1e-3)
    assert (costs["lab"].fixed, costs["lab"].per_row) == pytest.approx((7, 0), abs=1e-4)
    assert (costs["blood"].fixed, found.rows) == (200, ROWS), "blood has no features"
    assert CostDistributions.load(table).rows in (1, 100, 500)
