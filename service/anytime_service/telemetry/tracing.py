"""Spans of requests, connections and predictions, sent to a collector by OTLP where one is configured.

Configuration is OpenTelemetry's own, by its variables. Requests and connections get their spans from the framework,
predictions from here, when their answers have left. Spans wait in a bounded queue for a thread that sends them, so that
a collector that is slow, or gone, costs spans and never an answer. Without a collector nothing of this is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableMapping
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from anytime.errors import AnytimeError
from anytime.inference.answer import Answer
from anytime_service.telemetry.context import CURRENT
from anytime_service.telemetry.logs import shown_path, shown_query
from anytime_service.version import release

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link

__all__ = [
    "OFF",
    "Origin",
    "Tracing",
    "collector",
    "load_tracing",
]

CLOSE_S = 2.0
"""How long the end of the service waits for spans to be sent."""

UNTRACED = frozenset({"/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""What probes and scrapes ask for all the time."""

OFF: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""The framework's configuration where nothing is traced; looking for providers with every request costs too."""


class Origin(NamedTuple):
    """Where a prediction comes from: its parent, or what it is only linked to."""

    parent: Context
    links: tuple[Link, ...]


class Tracing:
    """Makes spans.

    Parameters
    ----------
    provider : keeps and sends them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import propagate, trace  # noqa: PLC0415
        from opentelemetry.context import Context, get_current  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("anytime", release())
        self._trace, self._extract, self._current, self._nothing = trace, propagate.extract, get_current, Context()

    @property
    def configuration(self) -> TelemetryConfig:
        """What the framework is told: a span a request, and nothing else."""
        return {
            **OFF,
            "tracing": True,
            "tracer_provider": self._provider,
            "operation_spans": False,
            "exclude": _untraced,
        }

    def begun(self, scope: Mapping[str, Any]) -> None:
        """Note which span the current request has, and take off it what may be a secret."""
        span, current = self._trace.get_current_span(), CURRENT.get()
        told = span.get_span_context()
        if not told.is_valid or current is None:
            return
        current.span = (self._trace.format_trace_id(told.trace_id), self._trace.format_span_id(told.span_id))
        if scope["type"] == "http":
            span.set_attribute("url.path", shown_path(scope))
        if scope.get("query_string"):
            span.set_attribute("url.query", shown_query(scope["query_string"]))

    def route(self, scope: Mapping[str, Any], path: str) -> None:
        """Name the current request's span, where the framework does not see its route."""
        span = self._trace.get_current_span()
        span.update_name(f"{scope['method']} {path}")
        span.set_attribute("http.route", path)

    def origin(self, traceparent: str | None) -> Origin:
        """Tell where a prediction that begins now comes from: its request, or the span that it names as its own parent.

        One of many on a connection, of which the caller told no trace, begins a trace of its own, so that predictions
        are sampled one by one, and is linked to the connection's span.
        """
        if traceparent is not None:
            return Origin(self._extract({"traceparent": traceparent}, self._nothing), ())
        current = CURRENT.get()
        if current is not None and current.connection and not current.traced:
            told = self._trace.get_current_span().get_span_context()
            return Origin(self._nothing, (self._trace.Link(told),) if told.is_valid else ())
        return Origin(self._current(), ())

    def answered(self, origin: Origin, answer: Answer, late_ms: float | None) -> None:
        """Make the span of a prediction whose answer has left."""
        now_ns = time.time_ns()
        told: dict[str, str | int | float | bool] = {
            "anytime.model.model": answer.model,
            "anytime.version": answer.version,
            "anytime.prefix": answer.prefix,
            "anytime.steps": answer.steps,
            "anytime.reason": answer.reason or "",
            "anytime.complete": answer.complete,
            "anytime.late_groups": len(answer.late_groups),
        }
        if late_ms is not None:
            told["anytime.lateness_ms"] = late_ms
        span = self._tracer.start_span(
            f"predict {answer.model}",
            context=origin.parent,
            links=origin.links,
            attributes=told,
            start_time=now_ns - int(answer.elapsed_ms * 1e6),
        )
        span.end(now_ns)

    def close(self) -> None:
        """Send what is left, for a while; a collector that does not answer is not waited for."""
        closing = Thread(target=self._provider.shutdown, name="anytime-tracing", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def collector(environment: Mapping[str, str]) -> str | None:
    """Where spans are to be sent: an address of an OTLP collector, None where nothing is configured.

    Raises
    ------
    AnytimeError
        What is configured is no such address, or not spoken here; the message names the variable.
    """
    name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    address = environment.get(name, "")
    if not address:
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        address = environment.get(name, "")
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not address or off or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return None
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AnytimeError(f"{name} is {address!r}; expected an address like http://collector:4318")
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environment.get(variable, "http/protobuf") not in ("", "http/protobuf"):
            raise AnytimeError(f"{variable} is {environment[variable]!r}; expected http/protobuf, by port 4318")
    return address


def load_tracing() -> Tracing | None:
    """Set tracing up as the environment says; None where no collector is configured.

    Raises
    ------
    AnytimeError
        The configuration cannot be, see `collector`; or packages that it needs are missing.
    """
    if collector(os.environ) is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise AnytimeError(
            f"tracing is configured and needs {error.name}; pip install 'anytime-linear[telemetry]', or unset OTEL_*"
        ) from error
    named = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    told = {SERVICE_VERSION: release()} | ({} if named else {SERVICE_NAME: "anytime"})
    try:
        provider = TracerProvider(resource=Resource.create(told), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise AnytimeError(f"tracing cannot be set up as the variables OTEL_* say: {error}") from error
    return Tracing(provider)


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    return scope.get("path") in UNTRACED
