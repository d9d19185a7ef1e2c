from __future__ import annotations

from typing import Any

import httpx
import pytest

from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import ROUTES
from anytime_service.schemas.catalogue import plan, summary
from anytime_service.settings import Settings
from models.present import present
from service.browser import BONN, certified_regression, trips
from service.serving import Running, problem_in, run_service, running


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
