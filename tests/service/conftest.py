from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction, signature
from pathlib import Path

import pytest

from anytime.model.model import Model
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.certificates import Certificate, certificate
from service.loops import run
from service.redis_server import RedisServer, redis_server
from service.serving import LIMITS, Running, run_service, running, several_models, small_model

# Clients share an interpreter with the services here, which are late for that reason alone.
os.environ.setdefault("ANYTIME_MAX_LATENESS_MS", "1000")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, of the kind that its argument `loop` names."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters}
    run(pyfuncitem.obj(**arguments), str(arguments.get("loop", "uvloop")))
    return True


@pytest.fixture(scope="module", autouse=True)
def _no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Name an empty directory of certificates: httpx would read all of this machine for each request, 0.03 s each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.getbasetemp()))
        patch.delenv("SSL_CERT_FILE", raising=False)  # it would come first
        yield


@pytest.fixture(scope="session")
def model() -> Model:
    return small_model()


@pytest.fixture(scope="module")
def settings(request: pytest.FixtureRequest) -> Settings:
    """The settings of the service: `SETTINGS` of a module that has its own."""
    return getattr(request.module, "SETTINGS", LIMITS)


def models_of(request: pytest.FixtureRequest) -> list[Model]:
    own = getattr(request.module, "MODELS", None)
    return [*own.values()] if own else [request.getfixturevalue("model")]


@pytest.fixture(scope="module")
def app(request: pytest.FixtureRequest, settings: Settings) -> AnytimeAPI:
    """The application of `MODELS` of a module that has some, or of one model."""
    app = create_app(ModelRegistry.of(models_of(request)), settings)

    async def fail() -> None:
        raise RuntimeError("the secret of the house")

    app.add_api_route("/fail", fail, include_in_schema=False)
    return app


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the small model, alone in its folder; no test changes it."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    small_model().save(path)
    return path


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate and its key."""
    return certificate(tmp_path_factory.mktemp("own"), "own")


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis that several tests use; each that counts what is there takes a database of its own."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads in which clients wait."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.fixture(scope="module")
def service(app: AnytimeAPI, settings: Settings) -> Iterator[Running]:
    with running(app, settings) as service:
        yield service


@pytest.fixture
def fresh(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Running]:
    """As `service`, for one test: it has counted nothing yet."""
    with run_service(models_of(request), settings) as service:
        yield service


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    """A service with the limits of a user who sets none."""
    with run_service([model], Settings(port=0)) as service:
        yield service


@pytest.fixture(scope="module")
def several(settings: Settings) -> Iterator[Running]:
    """A service of several models: `brake`; `lens` and `wide` have their moments; `kind` tells classes; and one by each
    likelihood, called as its family."""
    with run_service(several_models(), settings) as service:
        yield service
