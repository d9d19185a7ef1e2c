"""Spans of requests, connections and predictions, sent by OTLP if a collector is configured.

OpenTelemetry's own environment variables configure tracing. The framework makes the spans of requests and connections;
this module makes those of predictions after their answers are sent. A thread sends the spans from a bounded queue, so a
slow or unreachable collector loses spans and never delays an answer. Without a collector OpenTelemetry is not imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from anytime._version import __version__
from anytime.errors import AnytimeError, listed
from anytime.inference.prediction import Answer
from anytime_service.routes import is_probe
from anytime_service.telemetry.context import CURRENT
from anytime_service.telemetry.logs import shown_path, shown_query
from anytime_service.urls import server_url

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link

CLOSE_S = 2.0  # time that shutdown waits for spans to be sent, in seconds

OFF: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""The framework's configuration without tracing; it also avoids a search for providers in every request."""

Origin: TypeAlias = "tuple[Context, tuple[Link, ...]]"  # of a prediction's span: its parent, and the spans it links to


class Tracing:
    """Maker of spans, which `provider` stores and sends."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import propagate, trace  # noqa: PLC0415
        from opentelemetry.context import Context, get_current  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("anytime", __version__)
        self._trace, self._extract, self._current, self._nothing = trace, propagate.extract, get_current, Context()

    @property
    def configuration(self) -> TelemetryConfig:
        return {
            **OFF,
            "tracing": True,
            "tracer_provider": self._provider,
            "operation_spans": False,
            "exclude": is_probe,
        }

    def begun(self, scope: Mapping[str, Any]) -> None:
        """Store the ids of the current request's span, and remove possible secrets from its attributes."""
        span, current = self._trace.get_current_span(), CURRENT.get()
        ids = span.get_span_context()
        if not ids.is_valid or current is None:
            return
        current.span = (self._trace.format_trace_id(ids.trace_id), self._trace.format_span_id(ids.span_id))
        if scope["type"] == "http":
            span.set_attribute("url.path", shown_path(scope))
        if scope.get("query_string"):
            span.set_attribute("url.query", shown_query(scope["query_string"]))

    def route(self, scope: Mapping[str, Any], path: str) -> None:
        """Name the current request's span after its route, where the framework does not know the route."""
        span = self._trace.get_current_span()
        span.update_name(f"{scope['method']} {path}")
        span.set_attribute("http.route", path)

    def origin(self, traceparent: str | None) -> Origin:
        """Return the origin of a prediction that begins now: its request, or the span in `traceparent`.

        On a connection without a trace of the caller, every prediction begins a trace of its own that is linked to the
        connection's span, so that predictions are sampled one by one.
        """
        if traceparent is not None:
            return self._extract({"traceparent": traceparent}, self._nothing), ()
        current = CURRENT.get()
        if current is not None and current.connection and current.caller() is None:
            ids = self._trace.get_current_span().get_span_context()
            return self._nothing, (self._trace.Link(ids),) if ids.is_valid else ()
        return self._current(), ()

    def answered(self, origin: Origin, answer: Answer, late_ms: float | None) -> None:
        now_ns = time.time_ns()
        parent, links = origin
        attributes: dict[str, str | int | float | bool] = {
            "anytime.model": answer.model,
            "anytime.version": answer.version,
            "anytime.prefix": answer.prefix,
            "anytime.steps": answer.steps,
            "anytime.reason": answer.reason or "",
            "anytime.complete": answer.complete,
            "anytime.late_groups": len(answer.late_groups),
        }
        if late_ms is not None:
            attributes["anytime.lateness_ms"] = late_ms
        self._tracer.start_span(
            f"predict {answer.model}",
            context=parent,
            links=links,
            attributes=attributes,
            start_time=now_ns - int(answer.elapsed_ms * 1e6),
        ).end(now_ns)

    def close(self) -> None:
        """Send the remaining spans; give up after `CLOSE_S` if the collector does not answer."""
        closing = Thread(target=self._provider.shutdown, name="anytime-tracing", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def collector(environment: Mapping[str, str]) -> str | None:
    """Return the configured address of an OTLP collector; None if tracing is not configured.

    Raise AnytimeError, which names the variable, if the address is invalid or the protocol is not supported.
    """
    addresses = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    name = next((each for each in addresses if environment.get(each)), None)
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if name is None or off or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return None
    address = environment[name]
    if server_url(address, ("http", "https")) is None:
        raise AnytimeError(f"{name} is {address!r}; expected an address like http://collector:4318")
    protocols = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    stated = next((each for each in protocols if environment.get(each)), None)
    if stated is not None and environment[stated] != "http/protobuf":
        raise AnytimeError(f"{stated} is {environment[stated]!r}; expected http/protobuf, by port 4318")
    return address


@contextmanager
def checked_environment() -> Iterator[None]:
    """Enclose imports and calls that read OpenTelemetry's variables, as the framework's import does.

    Without a collector they do not see the variables. Otherwise raise AnytimeError, which names those that are invalid.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    for name in variables if collector(os.environ) is None else ():
        del os.environ[name]
    try:
        yield
    except (ValueError, RuntimeError, StopIteration) as error:  # the last of an unknown provider
        if not variables:
            raise
        why = str(error) or type(error).__name__
        invalid = [name for name in variables if any(part in why for part in variables[name].replace(",", " ").split())]
        raise AnytimeError(f"cannot set up tracing from {listed(invalid or list(variables))}: {why}") from error
    finally:
        os.environ.update(variables)


def load_tracing() -> Tracing | None:
    """Set up tracing from the environment; return None if no collector is configured.

    Raise AnytimeError if the configuration is invalid (see `collector`), or packages are missing.
    """
    if collector(os.environ) is None:
        return None
    try:
        with checked_environment():
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

            ours = Resource.create({"service.name": "anytime", "service.version": __version__})
            provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            return Tracing(provider)
    except ModuleNotFoundError as error:
        raise AnytimeError(
            f"tracing is configured, but {error.name} is not installed; run pip install 'anytime-linear[telemetry]' or "
            "unset OTEL_*"
        ) from error
