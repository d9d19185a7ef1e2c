from __future__ import annotations

import re
from dataclasses import fields

import httpx
from fastapi.openapi.models import OpenAPI

from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.messages import SUBPROTOCOL, BeginFrame
from anytime_service.settings import Settings
from service.doors import doors
from service.serving import Running, run_service, small_model

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
    references = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', response.text))
    assert references == set(schemas)


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
        assert operation["summary"], operation["operationId"]
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
