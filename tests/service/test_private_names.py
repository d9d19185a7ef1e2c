"""Names of dependencies that are not documented and that the server relies on. `pyproject.toml` caps their versions."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http import flow_control
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

METHODS: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: (
        *("_should_upgrade", "_start_asgi_task", "_unset_keepalive_if_required", "handle_websocket_upgrade"),
        *("on_body", "on_header", "on_headers_complete", "on_message_begin", "on_message_complete"),
        "on_response_complete",
    ),
    WebSocketsSansIOProtocol: (
        "handle_connect",
        "handle_cont",
        "handle_ping",
        "handle_pong",
        "send_receive_event_to_app",
    ),
    FlowControl: ("pause_reading", "pause_writing", "resume_reading", "resume_writing"),
    RequestResponseCycle: ("send",),
    ServerProtocol: ("data_to_send", "fail", "reject"),
}
"""Methods that the server overrides or calls: `server/http_protocol.py` and `websocket_protocol.py`."""

HTTP = (
    *("connections", "cycle", "expect_100_continue", "flow", "headers", "parser", "pipeline", "scope", "server_state"),
    *("transport", "url", "ws_protocol_class"),
)
WEBSOCKET = (
    *("close_sent", "conn", "frames", "handshake_complete", "handshake_initiated", "queue", "read_paused", "scope"),
    *("transport", "writable"),
)
CYCLE = (
    *("default_headers", "disconnected", "flow", "keep_alive", "message_event", "more_body", "on_response"),
    *("response_complete", "response_started", "scope", "transport", "waiting_for_100_continue"),
)


def config() -> uvicorn.Config:
    async def app(scope: object, receive: object, send: object) -> None: ...

    return uvicorn.Config(app, ws="websockets-sansio", log_config=None)


@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_the_methods_that_the_server_overrides_or_calls_exist(owner: type) -> None:
    assert [name for name in METHODS[owner] if not callable(getattr(owner, name, None))] == []


@pytest.mark.parametrize(
    ("owner", "names"),
    [(HttpToolsProtocol, HTTP), (WebSocketsSansIOProtocol, WEBSOCKET), (RequestResponseCycle, CYCLE)],
)
def test_the_attributes_of_connections_exist(owner: type, names: tuple[str, ...]) -> None:
    source = inspect.getsource(owner)
    assert [name for name in names if not re.search(rf"self\.{name}\b.* = ", source)] == []


def test_the_buffer_of_a_websocket_can_be_measured() -> None:
    async def buffered() -> int:
        return len(WebSocketsSansIOProtocol(config(), ServerState(), {}).conn.reader.buffer)

    assert asyncio.run(buffered()) == 0


def test_the_constant_exists() -> None:
    assert flow_control.HIGH_WATER_LIMIT > 0


@pytest.mark.parametrize("name", ["uvicorn", "httptools", "uvloop", "websockets"])
def test_the_versions_are_capped_to_a_minor_version(name: str) -> None:
    ranges = re.findall(rf'"{name}(?:\[\w+\])?>=(\d+)\.(\d+)(?:\.\d+)?,<(\d+)\.(\d+)', PYPROJECT)
    assert ranges
    assert all((lower[0], int(lower[1]) + 1) == (lower[2], int(lower[3])) for lower in ranges)
