"""Metrics of the service and their exposition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from anytime_service.limits.turns import Turns
from anytime_service.models.registry import load_registry
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import LONGEST_MS, GroupTimings, Histograms, Metrics, SessionTimings
from service.doors import refused
from service.serving import LINES, Running, changed, lines_of, run_service, small_model, trained_model
from waiting import until

LIMITS = Settings(port=0)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(metrics: Metrics) -> str:
    """Return the text of a scrape."""

    async def write() -> str:
        content, _ = await metrics.write("", Turns().slices())
        return content.decode()

    return asyncio.run(write())


def samples(parsed: Any) -> dict[tuple[str, str], float]:
    """Return the values by name and labels."""
    return {(each.name, str(sorted(each.labels.items()))): each.value for family in parsed for each in family.samples}


def test_every_metric_is_exposed_to_prometheus(service: Running) -> None:
    service.post({"groups": {}})
    response = service.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in (
        "anytime_predictions_total",
        "anytime_deadline_lateness_seconds",
        "anytime_prefix",
        "anytime_groups_late_total",
        "anytime_clamped_columns_total",
        "anytime_deadline_margin_seconds",
        "anytime_group_seconds",
        "anytime_open_predictions",
        "anytime_errors_total",
        "anytime_reloads_total",
        "anytime_loop_lag_seconds",
        "anytime_build_info",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ):
        assert f"\n# HELP {name} " in "\n" + response.text
    assert service.metric("anytime_model_info", model="brake", version="v1") == 1.0
    until(lambda: service.metric("anytime_loop_lag_seconds_count") > 0)


def test_openmetrics_is_sent_if_accepted_and_has_the_same_series(service: Running) -> None:
    plain, other = service.scrape(), service.scrape(accept=f"{OPENMETRICS},text/plain;q=0.5")
    assert other.headers["content-type"].startswith(OPENMETRICS)
    assert (other.text.count("# EOF\n"), other.text.endswith("# EOF\n")) == (1, True)
    names = {name for name in samples(families(plain.text)) if name[0].startswith("anytime_")}
    read: Callable[[str], Any] = openmetrics.text_string_to_metric_families
    assert names == {name for name in samples(read(other.text)) if name[0].startswith("anytime_")}
    assert len(names) > 50


def test_the_margin_that_answers_use_is_exposed() -> None:
    metrics = Metrics()
    record = metrics.of(small_model()).lateness
    for times, late_ms, margin in ((20_000, -5.0, "0.0"), (200, 5.0, "0.001")):
        for _ in range(times):
            record.add(late_ms)
        assert f'anytime_deadline_margin_seconds{{model="brake"}} {margin}' in scraped(metrics)


def test_versions_of_a_model_share_their_metrics_and_models_do_not() -> None:
    metrics, model = Metrics(), small_model()
    assert "# TYPE anytime_prefix histogram\n# HELP " in scraped(metrics), "a family without members"
    assert metrics.of(changed(model, version="v2")) is metrics.of(model) is not metrics.of(trained_model())


def many() -> Metrics:
    """Return the metrics of many models and groups."""
    metrics = Metrics()
    wide = trained_model("wide", width=3)
    for number in range(30):
        named = metrics.of(changed(wide, name=f"m{number}"))
        for group in wide.places:
            GroupTimings(named, 0.0).received(group, number + 0.5)
    return metrics


def test_a_sliced_scrape_has_the_series_that_the_library_writes() -> None:
    metrics = many()
    whole = samples(families(generate_latest(metrics.registry).decode()))
    sliced = scraped(metrics)
    exposed = {
        name: value
        for name, value in whole.items()
        if name[0].startswith("anytime_") and not name[0].endswith("_created")
    }
    assert len(exposed) > 3_000
    assert {name: value for name, value in samples(families(sliced)).items() if name in exposed} == exposed
    heads = re.findall(r"^# (?:HELP|TYPE) .*$", sliced, re.MULTILINE)
    assert len(heads) == len(set(heads))
    first, last = sliced.index("anytime_group_seconds_bucket"), sliced.rindex("anytime_group_seconds_sum")
    assert "# " not in sliced[first:last], "a family's lines stand together"


async def test_the_event_loop_runs_during_a_scrape_of_many_lines() -> None:
    metrics, turns, done = many(), 0, False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not done:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    await metrics.write("", Turns().slices())
    done = True
    assert turns > 10


@pytest.mark.parametrize("bounds", [(0.5, 1.0, 2.0), (-1.0, 0.0, 1.0)])
def test_histograms_expose_what_those_of_the_library_do(bounds: tuple[float, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Histograms("a_seconds", "Times.", ["model"], bounds, ours)
    library = Histogram("a_seconds", "Times.", ["model"], buckets=bounds, registry=theirs)
    for value in (-2.0, -1.0, 0.0, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5):
        own.labels("m").observe(value)
        library.labels("m").observe(value)

    def shown(registry: CollectorRegistry) -> list[tuple[Any, ...]]:
        samples = [sample for family in registry.collect() if isinstance(family, Metric) for sample in family.samples]
        without = ("_created", "_count") if bounds[0] < 0 else "_created"  # a count without a sum is no OpenMetrics
        return [tuple(each)[:3] for each in samples if not each.name.endswith(without)]

    assert shown(ours) == shown(theirs)


def test_the_least_recently_used_session_is_removed_and_an_absurd_time_counts_as_the_longest() -> None:
    metrics = Metrics()
    of_model = metrics.of(small_model())
    GroupTimings(of_model, 0.0).received("hog", 1.0, 1e300)
    timings = SessionTimings(2)
    for name in ("a", "b", "c"):
        timings.received(name, of_model, 0.0)

    timings.received("b", of_model, 3.0, ["speed"])
    timings.received("a", of_model, 5.0, ["hog"])  # like a session that another replica began
    timings.received("a", of_model, 9.0, ["hog"])
    timings.pop("b")
    timings.received("b", of_model, 9.0, ["lab"])
    seconds = re.findall(
        r'^anytime_group_seconds_sum{group="(\w+)",model="brake",rows="1"} (\S+)$', scraped(metrics), re.MULTILINE
    )
    assert dict(seconds) == {"hog": str(LONGEST_MS / 1000 + 0.004), "speed": "0.003"}


def test_models_that_are_no_longer_served_leave_the_list_and_keep_their_counts() -> None:
    metrics, model = Metrics(), small_model()
    metrics.set_served([model])
    metrics.of(model).groups_late.inc()
    metrics.set_served([changed(model, version="v2"), trained_model()])
    text = scraped(metrics)
    assert set(re.findall(r'^anytime_model_info{model="(\w+)",version="([\w-]+)"} 1.0$', text, re.MULTILINE)) == {
        ("brake", "v2"),
        ("lens", "lens-0"),
    }
    assert 'anytime_groups_late_total{model="brake"} 1.0' in text


def test_reloads_are_counted_by_outcome(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    old = small_model().save(file)
    with run_service(load_registry([tmp_path]), LIMITS) as service:
        model = small_model()
        new = replace(model, prefixes=replace(model.prefixes, intercept=model.prefixes.intercept + 1)).save(file)
        assert service.post_to("/models/brake/reload").status_code == 200
        assert service.metric("anytime_model_info", model="brake", version=new.version) == 1.0
        assert service.metric("anytime_model_info", model="brake", version=old.version) == 0.0
        file.write_bytes(b"nonsense")
        assert service.post_to("/models/brake/reload").status_code == 409
        new.save(file)
        assert service.post_to("/models/misspelt/reload").status_code == 404, (
            "a mistake of the client is no failed reload"
        )
        counted = {outcome: service.metric("anytime_reloads_total", outcome=outcome) for outcome in ("ok", "failed")}
        assert counted == {"ok": 1.0, "failed": 1.0}


def message_refused(service: Running) -> None:
    with service.stream() as stream:
        stream.say("end", "never begun")
        stream.problem()


def head_refused(head: bytes) -> Callable[[Running], None]:
    def send(service: Running) -> None:
        with service.connect() as connection:
            connection.send(head + b"\r\n\r\n")
            assert connection.response()[0] in (400, 431)

    return send


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("malformed-body", lambda service: service.post([1, 2])),
        ("unknown-model", lambda service: service.post({"groups": {}}, model="nobody")),
        ("unknown-model", lambda service: service.post_to("/v2/models/nobody/infer", {"inputs": []})),
        ("unknown-session", lambda service: service.get("/sessions/none/predict")),
        ("unusable-values", message_refused),
        ("unusable-values", lambda service: service.get("/models/brake/plan", budget=-1)),
        ("subprotocol", lambda service: refused(service, subprotocols=["mqtt"])),
        ("malformed-body", head_refused(b"no request")),
        ("head-too-large", head_refused(b"GET /%b HTTP/1.1\r\nHost: test" % (b"x" * 17_000))),
        ("http-404", lambda service: service.get("/nowhere")),
        ("http-405", lambda service: service.post_to("/livez")),
        ("fault", lambda service: service.get("/fail")),
    ],
)
def test_problems_are_counted_once_by_kind(service: Running, kind: str, make: Callable[[Running], Any]) -> None:
    def counted() -> dict[str, float]:
        kinds = re.findall(r'^anytime_errors_total{kind="([\w-]+)"} (\S+)$', service.scrape().text, re.MULTILINE)
        return {name: float(value) for name, value in kinds}

    before = counted()
    make(service)
    after = counted()
    assert {name: after[name] - before.get(name, 0.0) for name in after if after[name] != before.get(name)} == {kind: 1}


def test_no_text_of_a_client_becomes_a_label() -> None:
    with run_service([small_model()], LIMITS) as service:
        before = set(samples(families(service.scrape().text)))
        service.get("/evil")
        for path in ("/predict?model=evil", "/predict", "/sessions/evil/groups", "/models/evil/reload"):
            service.post_to(path, {"groups": {"evil": [1]}})
        with service.stream() as stream:
            stream.say("begin", "evil", model="evil")
            stream.problem()
            stream.say("begin", 1)
            stream.say("group", 1, group="evil", values=[1], took_ms=1)
            stream.problem()
            stream.end(1)
            stream.say("group", 1, group="evil", values=[1], took_ms=1)
            stream.say("end", 1)
            stream.ask(2, deadline_ms=0)
        lines = lines_of({"speed": [1], "hog": [1, 2], "evil": [1]})
        service.post_to("/predict?budget=5", content=lines, headers={"content-type": LINES})
        text = service.scrape(accept="evil/evil").text
        assert "evil" not in text
        new = {name for name, _ in set(samples(families(text))) - before}
        assert {name for name in new if not name.startswith(("anytime_group_seconds", "anytime_group_rows"))} == {
            "anytime_errors_total"
        }
