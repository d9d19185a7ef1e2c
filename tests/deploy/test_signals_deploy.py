"""Prometheus' configuration, the alerts and the dashboard, with the real Prometheus and a running service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from threading import Event, Thread
from typing import Any, get_args

import httpx
import pytest
import yaml

from anytime.types import Reason
from anytime_service.app import create_app
from anytime_service.limits.turns import Turns
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import Metrics
from deploy.project import DEPLOY, ran
from service.serving import PLAIN, VALUES, Running, running, small_model
from system import answers, free_port, program, started
from waiting import until

README = (DEPLOY / "README.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/anytime.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
CONFIGURATION: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
EXAMPLES = (DEPLOY / "prometheus/alerts.test.yml").read_text(encoding="utf-8")

MAY_BE_EMPTY = {
    "Shed": "nothing is refused here, and the series begins with the first refusal",
    "Clamped columns": "no column of the model here has a range",
}
"""Panels that may be without data, and why."""

VARIABLES = {"$__rate_interval": "5s", "$__range": "30s", "$job": "anytime", "$model": ".*"}


def expressions() -> list[tuple[str, str]]:
    """Return the queries of each panel, by its title."""
    return [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def metric_types() -> dict[str, str]:
    """Return the names and types of the service's metrics, as Prometheus reads them."""
    text, _ = asyncio.run(Metrics().write("", Turns().slices()))
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.MULTILINE))


def series() -> set[str]:
    """Return the names that expressions may use."""
    ends = {"histogram": ("_bucket", "_count", "_sum")}
    return {"up"} | {name + end for name, kind in metric_types().items() for end in ends.get(kind, ("",))}


@pytest.mark.parametrize(
    "arguments",
    [["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]],
    ids=" ".join,
)
def test_prometheus_accepts_its_configuration_and_the_alerts_pass_their_tests(arguments: list[str]) -> None:
    ran(program("promtool"), *arguments, cwd=DEPLOY / "prometheus")


def test_every_alert_has_examples_that_fire_and_that_do_not() -> None:
    tried = [
        (each["alertname"], bool(each.get("exp_alerts")))
        for test in yaml.safe_load(EXAMPLES)["tests"]
        for each in test["alert_rule_test"]
    ]
    for rule in RULES:
        assert {fires for name, fires in tried if name == rule["alert"]} == {True, False}, rule["alert"]


def test_every_alert_has_a_description_and_a_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        annotations = rule["annotations"]
        assert {"summary", "description", "runbook"} == set(annotations)
        assert annotations["runbook"] == f"deploy/RUNBOOK.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_reason_of_an_answer_is_documented() -> None:
    (row,) = re.findall(r"^\| `anytime_predictions_total` .*$", README, re.MULTILINE)
    assert set(get_args(Reason)) <= set(re.findall(r"`(\w+)`", row))


def test_every_metric_is_documented_with_its_type() -> None:
    rows = re.findall(r"^\| `(anytime_\w+)`[^|]*\| (\w+) \| (.*?) \|$", README, re.MULTILINE)
    assert {name: kind for name, kind, _ in rows} == {
        name: kind for name, kind in metric_types().items() if name.startswith("anytime_")
    }
    assert all(len(meaning) > 10 for *_, meaning in rows)


@pytest.mark.parametrize(("where", "expression"), [*expressions(), *((rule["alert"], rule["expr"]) for rule in RULES)])
def test_expressions_use_only_metrics_of_the_service(where: str, expression: str) -> None:
    named = set(re.findall(r"\b(?:anytime|process|python)_\w+|\bup\b", expression))
    assert named
    assert named <= series()


def test_panels_do_not_overlap_and_have_descriptions_and_the_selected_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert [each["type"] for each in variables.values()] == ["datasource", "query", "query"]
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        used = set(re.findall(r"\$(\w+)", json.dumps(panel["targets"]))) - {"__rate_interval", "__range", "datasource"}
        assert used <= set(variables)
    assert not [(a["title"], b["title"]) for a, b in combinations(DASHBOARD["panels"], 2) if overlap(a, b)]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return bool(
        a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]
    )


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    def read(path: str) -> Any:
        return yaml.safe_load((DEPLOY / "grafana/provisioning" / path).read_text(encoding="utf-8"))

    (source,) = read("datasources/prometheus.yml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = read("dashboards/anytime.yml")["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


@contextmanager
def continuous_requests(service: Running) -> Iterator[None]:
    """Send requests over every binding, valid ones and others, until the end of the block."""
    done = Event()

    def send() -> None:
        while not done.wait(0.05):
            send_mixed_requests(service)

    thread = Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(60)


def send_mixed_requests(service: Running) -> None:
    with service.stream() as stream:
        for name, deadline_ms in enumerate((1, 5_000)):
            stream.say("begin", name, deadline_ms=deadline_ms)
            if deadline_ms == 1:
                stream.answer(name)
            for group, values in VALUES.items():
                stream.say("group", name, group=group, values=values, took_ms=0.2)
        stream.answer(1)
        stream.say("end", "never begun")
        stream.problem()
    service.post({"groups": VALUES}, budget=5)
    service.post({"groups": {"nobody": [1]}})
    session = service.post_to("/sessions").json()["id"]
    service.post_to(f"/sessions/{session}/groups", {"speed": VALUES["speed"]})
    service.get(f"/sessions/{session}/predict", deadline_ms=1)
    service.post_to("/v2/models/brake/infer", {"inputs": []})
    service.get("/fail")


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run Prometheus with our configuration, on a local service, every second."""
    configuration = CONFIGURATION | {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus/alerts.yml")],
        "scrape_configs": [{"job_name": "anytime", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def ready() -> bool:
        url = f"http://127.0.0.1:{port}/-/ready"
        return answers(port) and httpx.get(url, timeout=60, verify=PLAIN).status_code == 200

    with started(command, ready):
        yield f"http://127.0.0.1:{port}/api/v1"


def found(prometheus: str, expression: str) -> list[float]:
    """Return the values of an expression in Prometheus."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    response = httpx.get(f"{prometheus}/query", params={"query": expression}, timeout=60, verify=PLAIN).json()
    assert response["status"] == "success", (expression, response)
    return [float(each["value"][1]) for each in response["data"]["result"] if each["value"][1] != "NaN"]


def test_every_panel_has_data_and_every_alert_is_evaluated_by_the_real_prometheus(tmp_path: Path) -> None:
    settings = Settings(port=0, metrics_port=0)
    app = create_app(ModelRegistry.of([small_model()]), settings)

    async def fail() -> None:
        raise RuntimeError("raised by the test")

    app.add_api_route("/fail", fail, include_in_schema=False)
    pending = dict.fromkeys(each for each in expressions() if each[0] not in MAY_BE_EMPTY)
    with running(app, settings) as service, continuous_requests(service):
        assert service.metrics_port is not None
        with prometheus(tmp_path, service.metrics_port) as api:

            def all_found() -> bool:
                for each in list(pending):
                    if found(api, each[1]):
                        del pending[each]
                return not pending

            def rules() -> dict[str, Any]:
                groups = httpx.get(f"{api}/rules", timeout=60, verify=PLAIN).json()["data"]["groups"]
                return {rule["name"]: rule for group in groups for rule in group["rules"]}

            try:
                until(all_found)
            except AssertionError as error:
                raise AssertionError(f"no data for {list(pending)}") from error
            for title in MAY_BE_EMPTY:
                for expression in (expression for name, expression in expressions() if name == title):
                    found(api, expression)
            until(lambda: rules()["AnytimeFaults"]["state"] == "firing")
            for name, rule in rules().items():
                assert (rule["health"], rule.get("lastError")) == ("ok", None), name
                assert rule["state"] != "firing" or name == "AnytimeFaults", name
