"""Spans of requests and predictions, as a collector gets them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import enumerate as enumerate_threads

import httpx
import pytest

import anytime_service
from anytime.errors import AnytimeError
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from anytime_service.telemetry import tracing
from anytime_service.telemetry.tracing import collector, load_tracing
from models.present import present
from service.collecting import Collector, collecting
from service.commands import ENVIRONMENT, command
from service.in_session import begin, post_groups
from service.serving import LINES, VALUES, Running, logged, running, small_model
from service.telemetry.test_logs import SPAN, TRACE, TRACEPARENT, written
from waiting import until

LIMITS = Settings(port=0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans leave after 20 ms, and nothing else of the environment counts."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    for name in ("OTEL_SERVICE_NAME", "OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[Running]:
    """A service whose spans go to a collector; when it has ended nothing is sent any more."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    before = set(enumerate_threads())
    loaded = present(load_tracing())
    [sender] = set(enumerate_threads()) - before
    try:
        with running(create_app(ModelRegistry.of([small_model()]), LIMITS, loaded), LIMITS) as service:
            yield service
    finally:
        loaded.close()
        sender.join(60)
        assert not sender.is_alive()


@pytest.fixture
def here() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def service(here: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    with traced(monkeypatch, here.url) as service:
        yield service


def test_a_prediction_has_a_span_in_that_of_its_request_in_the_trace_of_its_caller(
    service: Running, here: Collector
) -> None:
    answer = httpx.post(
        f"{service.url}/predict?deadline_ms=5000", json={"groups": VALUES}, headers={"traceparent": TRACEPARENT}
    ).json()
    [request], [prediction] = here.named("POST /predict"), here.named("predict brake")
    assert [request.trace, prediction.trace] == [TRACE] * 2
    assert [request.parent, prediction.parent] == [SPAN, request.id]
    reported = {"http.route": "/predict", "http.response.status_code": 200, "url.query": "deadline_ms=5000"}
    assert reported.items() <= request.attributes.items()
    assert prediction.attributes == {
        "anytime.model": "brake",
        "anytime.version": "v1",
        "anytime.prefix": 3,
        "anytime.steps": 3,
        "anytime.reason": "complete",
        "anytime.complete": True,
        "anytime.late_groups": 0,
    }
    assert prediction.took_ms == pytest.approx(answer["elapsed_ms"], abs=0.01)


def test_no_span_has_a_secret_of_a_query_or_a_header(service: Running, here: Collector) -> None:
    headers = {"Authorization": "Bearer secret"}
    assert httpx.post(f"{service.url}/predict?key=secret", json={}, headers=headers).status_code == 422
    [request] = here.named("POST /predict")
    assert request.attributes["url.query"] == "key=%2A%2A%2A"
    assert "secret" not in str(here.spans)


def test_the_span_of_an_answer_at_a_deadline_has_its_lateness(service: Running, here: Collector) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=20", content_type=LINES, traceparent=TRACEPARENT)
        connection.response()
        connection.send(b"0\r\n\r\n")
    [prediction] = here.named("predict brake")
    assert (prediction.attributes["anytime.reason"], prediction.trace) == ("deadline", TRACE), "it left from an alarm"
    assert isinstance(prediction.attributes["anytime.lateness_ms"], float)


def test_every_route_has_its_name_and_probes_have_no_spans(service: Running, here: Collector) -> None:
    session = begin(service)
    post_groups(service, session, {"speed": VALUES["speed"]})
    service.post_to("/v2/models/brake/infer", {"inputs": []})
    service.get("/predict", session=session, deadline_ms=0)
    probes = ("/livez", "/readyz", "/metrics", "/v2/health/live")
    for path in (*probes, "/models/brake/plan", "/nowhere"):
        service.get(path)
    here.named("GET")
    here.named("predict brake", 2)
    assert {span.name for span in here.spans} == {
        "POST /sessions",
        "POST /sessions/{id}/groups",
        "GET /predict",
        "POST /v2/models/{name}/infer",
        "GET /models/{name}/plan",
        "GET",
        "predict brake",
    }
    assert session not in str(here.spans), "who has it can use the session"
    [groups] = here.named("POST /sessions/{id}/groups")
    assert groups.attributes["url.path"] == "/sessions/{id}/groups"
    assert here.named("GET /models/{name}/plan")[0].attributes["url.path"] == "/models/brake/plan"
    assert {span.service for span in here.spans} == {"anytime"}


def test_predictions_of_a_connection_begin_traces_of_their_own(service: Running, here: Collector) -> None:
    with service.stream() as stream:
        for name, parent in enumerate((None, None, TRACEPARENT, "nonsense")):
            stream.ask(name, deadline_ms=0, traceparent=parent)
    [connection] = here.named("WS /stream")
    predictions = here.named("predict brake", 4)
    [named] = [span for span in predictions if span.trace == TRACE]
    assert (named.parent, named.links) == (SPAN, [])
    own = [span for span in predictions if not span.parent]
    assert len({span.trace for span in own} - {connection.trace}) == 3
    assert sorted(len(span.links) for span in own) == [0, 1, 1]
    assert all(link == (connection.trace, connection.id) for span in own for link in span.links)


def test_predictions_belong_to_the_trace_that_the_caller_sends_with_the_handshake(
    service: Running, here: Collector
) -> None:
    with service.stream(additional_headers={"traceparent": TRACEPARENT}) as stream:
        stream.ask(1, deadline_ms=5)
    [connection], [prediction] = here.named("WS /stream"), here.named("predict brake")
    assert (connection.trace, connection.parent) == (TRACE, SPAN)
    assert (prediction.trace, prediction.parent) == (TRACE, connection.id)


def test_lines_of_the_log_have_the_ids_of_our_own_span(service: Running, here: Collector) -> None:
    with written(Settings(log_format="json", log_level="debug")) as sink:
        httpx.post(f"{service.url}/predict", json={"groups": {}}, headers={"traceparent": TRACEPARENT})
        [request] = here.named("POST /predict")
        until(lambda: bool(sink.getvalue()))
    line = json.loads(sink.getvalue().splitlines()[0])
    assert (line["trace_id"], line["span_id"]) == (TRACE, request.id)


def test_the_variables_of_the_standard_hold(here: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, services in (("SERVICE_NAME", "brakes", {"brakes"}), ("TRACES_SAMPLER", "always_off", set())):
        monkeypatch.setenv(f"OTEL_{name}", value)
        here.spans.clear()
        with traced(monkeypatch, here.url) as service:
            service.post({"groups": {}})
        assert {span.service for span in here.spans} == services, "all have been sent when tracing is closed"


def test_a_span_that_cannot_be_made_is_logged_and_the_answer_has_left(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no span")

    monkeypatch.setattr(tracing.Tracing, "answered", fail)
    with logged() as records, service.stream() as stream:
        for name in range(2):
            assert stream.ask(name, deadline_ms=1)["reason"] == "deadline"
    assert [record.getMessage() for record in records] == ["could not make the span of a prediction"] * 2


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"},
    ],
)
def test_nothing_is_traced_unless_a_collector_is_configured(environment: dict[str, str]) -> None:
    assert collector(environment) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'collector:4318'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is 'http://'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:99999"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'http://c:99999'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[c:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'http://.c:4318'"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; expected http/protobuf",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_variable(environment: dict[str, str], words: str) -> None:
    with pytest.raises(AnytimeError, match=words):
        collector(environment)


def test_the_protocol_of_traces_has_priority() -> None:
    stated = {"ENDPOINT": "http://c:4318", "PROTOCOL": "grpc", "TRACES_PROTOCOL": "http/protobuf"}
    assert collector({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in stated.items()}) == "http://c:4318"


def test_another_protocol_of_an_application_that_makes_its_own_traces_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}).items():
        monkeypatch.setenv(name, value)
    assert anytime_service.create_app is create_app


def test_without_the_packages_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(AnytimeError, match=r"pip install 'anytime-linear\[telemetry\]'"):
        load_tracing()


def test_a_collector_that_hangs_costs_spans_and_no_answer(model_file: Path) -> None:
    with collecting(hangs=True) as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
            "OTEL_BSP_SCHEDULE_DELAY": "5",
            "OTEL_BSP_MAX_QUEUE_SIZE": "16",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        }
        with command(model_file, **environment) as (served, service):
            with service.stream() as stream:
                for name in range(60):
                    assert stream.ask(name, deadline_ms=5)["reason"] == "deadline"
            assert collector.asked.is_set()
            served.process.send_signal(signal.SIGTERM)
            output = served.stopped()
    assert ("Traceback" in output, served.process.returncode in (0, -signal.SIGTERM)) == (False, True)


INVALID = {
    "OTEL_PROPAGATORS": "tracecontext,baggage,b3",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "none",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "-1",
    "OTEL_BSP_MAX_QUEUE_SIZE": "-1",
    "OTEL_PYTHON_METER_PROVIDER": "unknown",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "unknown",
}
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


FORKING = """
import json, os, sys, warnings
import prometheus_client, uvicorn
from anytime import load
from anytime.cli.main import main

def loaded():
    from anytime_service import Settings, create_app, load_registry, serve
    from anytime_service.telemetry.tracing import load_tracing
    return load_tracing() is not None

assert not [name for name in sys.modules if name.startswith("opentelemetry")]
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork next to other threads
for arguments, environment in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        os.environ.update(environment)
        os._exit(main(arguments) if arguments else loaded())
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""
"""Forks before anything of OpenTelemetry is imported, for each environment."""


def test_an_invalid_variable_ends_a_server_by_a_line_that_names_it_and_counts_for_nothing_where_traces_are_off(
    model_file: Path,
) -> None:
    served: list[tuple[list[str], dict[str, str]]] = [
        (["serve", str(model_file), "--port", "0"], COLLECTOR | {name: value}) for name, value in INVALID.items()
    ]
    loaded: list[tuple[list[str], dict[str, str]]] = [
        ([], INVALID),
        ([], INVALID | COLLECTOR | {"OTEL_SDK_DISABLED": "true"}),
    ]
    command = [sys.executable, "-c", FORKING, json.dumps(served + loaded)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    *outputs, _ = done.stderr.split("ended with ")
    codes = re.findall(r"^ended with (-?\d+)$", done.stderr, re.MULTILINE)
    assert codes == ["2"] * len(served) + ["0", "0"], done.stderr
    for name, said in zip(INVALID, outputs, strict=False):
        line = said.splitlines()[-1]  # OpenTelemetry logs before it raises, for some
        assert (line.startswith("error: cannot set up tracing from "), name in line) == (True, True), said
    assert [said.splitlines()[1:] for said in outputs[-2:]] == [[], []]


def test_the_environment_is_as_before_when_the_imports_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PROPAGATORS", "b3")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with tracing.checked_environment():
        assert "OTEL_PROPAGATORS" not in os.environ
    assert os.environ["OTEL_PROPAGATORS"] == "b3"
