"""A collector of spans that stands in for a real one, for the tests: OTLP over HTTP, decoded as the standard has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from system import http_server
from waiting import until

__all__ = ["Collected", "Collector", "collecting"]


@dataclass(frozen=True)
class Collected:
    """A span as it came."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    took_ms: float
    service: str


@dataclass
class Collector:
    """What came, and where it is to be sent; while it `hangs` nothing is answered."""

    url: str
    spans: list[Collected] = field(default_factory=list)
    released: Event = field(default_factory=Event)
    asked: Event = field(default_factory=Event)

    def named(self, name: str, count: int = 1) -> list[Collected]:
        """Wait for spans of a name."""
        until(lambda: sum(span.name == name for span in list(self.spans)) >= count)
        return [span for span in list(self.spans) if span.name == name]


class Requests(BaseHTTPRequestHandler):
    """Store the spans of each request with the collector; answer none before its end if it hangs."""

    collector: Collector
    hangs: bool

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.collector.asked.set()
        if self.hangs:
            self.collector.released.wait(60)
        assert self.path == "/v1/traces"
        self.collector.spans += _read(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    """Run a collector until the end of the block."""
    collector = Collector("")
    with http_server(Requests, collector=collector, hangs=hangs) as port:
        collector.url = f"http://127.0.0.1:{port}"
        try:
            yield collector
        finally:
            collector.released.set()


def _read(request: ExportTraceServiceRequest) -> list[Collected]:
    return [
        _collected(span, _values(group.resource.attributes)["service.name"])
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _collected(span: Span, service: str) -> Collected:
    return Collected(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        attributes=_values(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        took_ms=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
        service=service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in attributes}
