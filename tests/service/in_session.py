"""Sessions over HTTP, for the tests: begin one, post groups, and wait for a prediction in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from service.serving import Running
from waiting import until

__all__ = ["begin", "post_groups", "wait"]


def begin(service: Running, **body: Any) -> str:
    """Begin a session; return its id."""
    created = service.post_to("/sessions", body or None)
    assert created.status_code == 201, created.text
    name: str = created.json()["id"]
    return name


def post_groups(service: Running, session: str, groups: Mapping[str, Any]) -> httpx.Response:
    return service.post_to(f"/sessions/{session}/groups", groups)


def wait(threads: ThreadPoolExecutor, service: Running, session: str, **asked: Any) -> Future[httpx.Response]:
    """Request a prediction in a thread; return when the service has received the request."""
    before = service.metric("anytime_open_predictions")
    waiting = threads.submit(service.get, f"/sessions/{session}/predict", **asked)
    until(lambda: service.metric("anytime_open_predictions") > before or waiting.done())
    return waiting
