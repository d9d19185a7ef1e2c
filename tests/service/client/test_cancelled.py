"""A call that is cancelled, or whose client closes, is no open prediction on the server any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from anytime_service.app import create_app
from anytime_service.client import AsyncClient
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.certificates import certificate
from service.serving import VALUES, Running, running, small_model

LONG_MS = 50_000.0
"""The server answers by itself long after a test has failed."""


class Served:
    """A server, and its service for a look at what is open."""

    def __init__(self, server: Running, service: PredictionService) -> None:
        self.server, self.service = server, service

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.service.active) != count:
                await asyncio.sleep(0.005)


@pytest.fixture(scope="module", params=["plain", "TLS"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, str, Any]]:
    limits: dict[str, Any] = {"port": 0, "max_deadline_ms": 60_000, "max_lateness_ms": 5_000}
    own = None
    if request.param == "TLS":
        folder: Path = tmp_path_factory.mktemp("certificates")
        own = certificate(folder, "own")
        limits |= {"ssl_certfile": own.file, "ssl_keyfile": own.key}
    settings = Settings(**limits)
    app = create_app(ModelRegistry.of([small_model()]), settings)
    with running(app, settings) as server:
        scheme = "http" if own is None else "https"
        yield (
            Served(server, app.state.service),
            f"{scheme}://127.0.0.1:{server.port}",
            True if own is None else own.trusted(),
        )


RELEASED = Event()


def waits(_: Any) -> list[float]:
    RELEASED.wait(60)
    return VALUES["hog"]


EXTRACTORS = {"speed": lambda _: VALUES["speed"], "hog": waits, "lab": lambda _: VALUES["lab"]}


@pytest.mark.parametrize("budget", [None, 6.0])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_call_that_has_ended_is_freed_on_the_server_at_once(
    served: tuple[Served, str, Any], budget: float | None, end: str
) -> None:
    at, url, ssl = served
    RELEASED.clear()

    async def main() -> None:
        client = AsyncClient(url, **({} if ssl is True else {"ssl": ssl}))
        try:
            await client.warm_up(EXTRACTORS)
            tasks = [asyncio.create_task(client.run(EXTRACTORS, None, LONG_MS, budget=budget)) for _ in range(5)]
            try:
                await at.until(5)
            except TimeoutError:
                ended = [each.exception() or each.result() for each in tasks if each.done()]
                raise AssertionError(
                    f"{len(at.service.active)} predictions are open; calls that ended: {ended}"
                ) from None
            if end == "close":
                await client.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await at.until(0)
            if end == "cancel":
                RELEASED.set()
                assert (await client.predict(VALUES, deadline_ms=LONG_MS)).complete, "the connection is still used"
        finally:
            RELEASED.set()
            await client.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 180))
    finally:
        RELEASED.set()
