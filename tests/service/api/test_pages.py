"""Predictions of many rows: their total cost, the plan for them, and the rows of measured calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anytime.cli.main import main
from anytime.costs.distributions import CostDistributions
from anytime.groups import load_groups
from anytime.model.model import Model
from anytime_service.client import Client
from anytime_service.schemas.catalogue import plan
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from lazily import Lazy
from service.in_session import begin, post_groups
from service.serving import GROUPS, LINES, VALUES, Running, changed, chunk, lines_of, packed, small_model
from waiting import until

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
