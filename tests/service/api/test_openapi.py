from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
from fastapi.openapi.models import OpenAPI

from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry, load_registry
from anytime_service.schemas.messages import SUBPROTOCOL, BeginFrame
from anytime_service.settings import Settings
from models.properties import SHARE
from service.commands import ENVIRONMENT
from service.doors import MANAGING, bearer, doors
from service.serving import VALUES, Running, logged, run_service, small_model, trained_model
from waiting import until

ITSELF = {"/docs", "/openapi.json"}


def test_every_route_is_in_the_document(settings: Settings) -> None:
    app = create_app(ModelRegistry.of([]), settings)
    documented = {(method, path) for path, item in app.openapi()["paths"].items() for method in item}
    routes = {(door.method.lower(), door.path) for door in doors(app) if door.method != "HEAD"}
    assert documented == {(method, path) for method, path in routes if path not in ITSELF}
    assert {("post", "/predict"), ("get", "/models/{name}/plan"), ("get", "/readyz")} <= documented


def test_the_document_is_valid_and_every_reference_in_it_leads_somewhere(service: Running) -> None:
    response = service.get("/openapi.json")
    OpenAPI.model_validate(response.json())
    schemas = response.json()["components"]["schemas"]
    assert set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', response.text)) == set(schemas)


def test_the_documentation_page_loads_nothing_from_elsewhere(service: Running) -> None:
    page = service.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    sources = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert {"console/swagger-ui-bundle.js", "console/swagger-ui.css", "openapi.json"} <= set(sources)
    for source in sources:
        assert "//" not in source
        assert service.get(f"/{source}").status_code == 200, source


def test_every_operation_has_a_name_of_its_own_its_problems_and_200_unless_it_creates_deletes_or_upgrades(
    app: AnytimeAPI,
) -> None:
    operations = [each for item in app.openapi()["paths"].values() for each in item.values()]
    statuses = {each["operationId"]: min(each["responses"]) for each in operations}
    assert len(statuses) == len(operations)
    for operation in operations:
        assert not operation["summary"].istitle(), f"{operation['operationId']}: made from its name"
        for status, response in operation["responses"].items():
            if status >= "400" and not operation["operationId"].startswith("oip"):
                assert "application/problem+json" in response["content"], operation["operationId"]
    others = {"stream": "101", "create_session": "201", "delete_session": "204"}
    assert {name: status for name, status in statuses.items() if status != "200"} == others


def test_the_stream_is_described_with_its_messages(app: AnytimeAPI) -> None:
    document = app.openapi()
    reported = document["paths"]["/stream"]["get"]["x-websocket"]
    assert reported["subprotocol"] == SUBPROTOCOL
    names = [each["$ref"].rpartition("/")[2] for each in reported["client"]]
    assert names == ["BeginFrame", "GroupFrame", "EndFrame"]
    schemas = document["components"]["schemas"]
    assert set(schemas["BeginFrame"]["properties"]) == {"type", *BeginFrame.__struct_fields__}
    assert set(schemas["Answer"]["properties"]) == {field.name for field in fields(Answer)} - {*LOCAL_FIELDS}
    assert set(schemas["Contributions"]["properties"]) == {"intercept", "groups", "features"}


def test_a_path_that_a_proxy_removes_is_in_addresses_of_the_service() -> None:
    """The proxy passes on /models for /any/time/models."""
    with run_service([small_model()], Settings(port=0, root_path="/any/time")) as service:
        assert service.get("/openapi.json").json()["servers"] == [{"url": "/any/time"}]
        created = httpx.post(f"{service.url}/sessions", json={})
        assert created.headers["location"] == f"/any/time/sessions/{created.json()['id']}"
        assert httpx.get(f"{service.url}/models/").headers["location"] == "../models", "relative, so right at any path"
        for path in ("/v2/models/none", "/v2/models/brake/config", "/v2/nothing"):
            assert "error" in service.get(path).json(), "as the Open Inference Protocol has it"
        assert service.get("/livez").status_code == 200
        with service.stream() as stream:
            assert stream.ask(1, deadline_ms=0)["reason"] == "deadline"
    with run_service([small_model()], Settings(port=0)) as service:
        assert "servers" not in service.get("/openapi.json").json()
        assert httpx.post(f"{service.url}/sessions", json={}).headers["location"].startswith("/sessions/")


# The running service keeps what the document says, tried by schemathesis; the same requests in every run.


LIMITS = Settings(port=0, max_deadline_ms=300, max_body_bytes=100_000, api_keys=f"admin:{MANAGING}")

EXAMPLES = str(round(12 * SHARE))
"""Requests of each operation and phase."""

LEFT_OUT = ("positive_data_acceptance", "missing_required_header")
"""Checks left out: which groups a model has, and their widths, no schema of ours says, so 422 is in order. No header
is required but the key, and schemathesis sends its own with requests that are to have none, too."""


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not here")
def test_what_the_document_says_holds(tmp_path: Path) -> None:
    trained_model().save(tmp_path / "m.safetensors")
    hooks = Path(__file__).parents[1] / "schemathesis_hooks.py"
    options = ["--generation-deterministic", "--max-examples", EXAMPLES, "--no-color", "--workers", "1"]
    with run_service(load_registry([tmp_path]), LIMITS) as service:
        with logged() as records:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
                    *("--header", f"Authorization: Bearer {MANAGING}"),
                    *(*options, "--exclude-checks", ",".join(LEFT_OUT)),
                ],
                env={**ENVIRONMENT, "PYTHONWARNINGS": "ignore", "SCHEMATHESIS_HOOKS": os.fspath(hooks)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
        assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
        with httpx.Client(base_url=service.url, headers=bearer(MANAGING)) as client:
            operations = sum(len(item) for item in client.get("/openapi.json").json()["paths"].values())
            assert f"Tested: {operations}\n" in done.stdout
            assert not [record for record in records if record.levelname == "ERROR"]
            assert client.post("/predict", json={"groups": VALUES}).json()["complete"]
            until(lambda: "\nanytime_open_predictions 0.0\n" in client.get("/metrics").text)
