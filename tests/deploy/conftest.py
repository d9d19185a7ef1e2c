"""A service, and the ways to it: direct, for comparison, and through each proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.requests import Request

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from deploy.project import PROXIES, run_proxy
from service.serving import Running, running, small_model

SETTINGS = Settings(port=0, max_body_bytes=100_000, max_lateness_ms=1e6)  # busy machines are late


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    app = create_app(ModelRegistry.of([small_model()]), SETTINGS)

    async def echo_headers(request: Request) -> dict[str, str]:
        return dict(request.headers)

    app.add_api_route("/headers", echo_headers, include_in_schema=False)
    with running(app, SETTINGS) as service:
        yield service


@pytest.fixture(scope="module", params=["direct", *PROXIES])
def way(
    request: pytest.FixtureRequest, service: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    if request.param == "direct":
        yield service
        return
    with run_proxy(request.param, [service.port], tmp_path_factory.mktemp(request.param)) as found:
        yield found
