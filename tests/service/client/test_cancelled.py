"""A call that is cancelled, or whose client closes, is no open prediction on the server any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from anytime_service.app import create_app
from anytime_service.client import AsyncClient
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.certificates import Certificate
from service.serving import VALUES, running, small_model
from waiting import until_async

LONG_MS = 50_000.0
"""The server answers by itself long after a test has failed."""


@pytest.fixture(scope="module", params=["plain", "TLS"])
def served(request: pytest.FixtureRequest, own: Certificate) -> Iterator[tuple[PredictionService, str, Any]]:
    encrypted = request.param == "TLS"
    tls: dict[str, Any] = {"ssl_certfile": own.file, "ssl_keyfile": own.key} if encrypted else {}
    settings = Settings(port=0, max_deadline_ms=60_000, max_lateness_ms=5_000, **tls)
    app = create_app(ModelRegistry.of([small_model()]), settings)
    with running(app, settings) as server:
        url = f"{'https' if encrypted else 'http'}://127.0.0.1:{server.port}"
        yield app.state.service, url, own.trusted() if encrypted else None


RELEASED = Event()


def waits(_: Any) -> list[float]:
    RELEASED.wait(60)
    return VALUES["hog"]


EXTRACTORS = {"speed": lambda _: VALUES["speed"], "hog": waits, "lab": lambda _: VALUES["lab"]}


@pytest.mark.parametrize("budget", [None, 6.0])
@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_call_that_has_ended_is_freed_on_the_server_at_once(
    served: tuple[PredictionService, str, Any], budget: float | None, end: str
) -> None:
    service, url, ssl = served
    RELEASED.clear()
    async with AsyncClient(url, ssl=ssl) as client:
        await client.warm_up(EXTRACTORS)
        tasks = [asyncio.create_task(client.run(EXTRACTORS, None, LONG_MS, budget=budget)) for _ in range(5)]
        await until_async(lambda: len(service.active) == 5, "the predictions are open")
        if end == "close":
            await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_async(lambda: not service.active, "the predictions are freed")
        RELEASED.set()
        if end == "cancel":
            assert (await client.predict(VALUES, deadline_ms=LONG_MS)).complete, "the connection is still used"
    assert asyncio.all_tasks() == {asyncio.current_task()}
