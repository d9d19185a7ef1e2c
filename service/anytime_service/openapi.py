"""The OpenAPI document: the framework's own, plus the hot routes that the framework does not look into."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from starlette.routing import Route

from anytime.answer import Answer, Policy
from anytime_service.problems import MEDIA_TYPE, Problem
from anytime_service.wire import PredictRequest

__all__ = ["PREDICT_OPERATION", "PROBLEMS", "AnytimeAPI", "problem_responses"]

_REF = "#/components/schemas/"
_PROBLEM_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}

PROBLEMS = {
    400: "The body is not the JSON expected",
    404: "There is no such model",
    413: "The body is too large",
    415: "The body is in a form that is not read here",
    422: "A value cannot be used; `field` names it",
    500: "The server failed",
    503: "No model is loaded",
}
"""Problems that routes document, by status."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problem responses as a route documents them."""
    return {status: {"description": PROBLEMS[status], "content": _PROBLEM_CONTENT} for status in statuses}


def _parameter(name: str, schema: dict[str, Any], description: str, place: str = "query") -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": description}


_AMOUNT = {"type": "number", "minimum": 0}

PREDICT_OPERATION: dict[str, Any] = {
    "operationId": "predict",
    "summary": "Predict from the groups at hand",
    "description": "The best prediction that the groups in the body allow within the budget. "
    "If the deadline strikes before the body has ended, the base rate at once: 200, with `complete` false.",
    "parameters": [
        _parameter("budget", _AMOUNT, "What the groups used may cost a row, in the model's cost unit; none: no limit."),
        _parameter(
            "deadline_ms", _AMOUNT, "Time to answer in, from the head of the request; 0: the base rate at once."
        ),
        _parameter(
            "policy",
            {"type": "string", "enum": list(get_args(Policy)), "default": "prefix"},
            "prefix: the longest complete prefix; arrived: the optimum for whatever set is in the body.",
        ),
        _parameter("model", {"type": "string"}, "Name of the model; not needed if there is one."),
        _parameter(
            "rows",
            {"type": "integer", "minimum": 1},
            "Rows of the body, so that an answer that leaves before its end has as many; else it has one.",
        ),
        _parameter("Request-Timeout-Ms", _AMOUNT, "A deadline too; the smallest counts.", "header"),
        _parameter(
            "grpc-timeout",
            {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
            "A deadline too; the smallest counts.",
            "header",
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"{_REF}PredictRequest"}}},
    },
    "responses": {
        "200": {
            "description": "The answer; also when the deadline has struck",
            "content": {"application/json": {"schema": {"$ref": f"{_REF}Answer"}}},
        },
        **{str(status): told for status, told in problem_responses(400, 404, 413, 415, 422, 500).items()},
    },
}


class AnytimeAPI(FastAPI):
    """FastAPI whose document also has the routes whose endpoints carry an `operation` of their own."""

    def openapi(self) -> dict[str, Any]:
        """Build the OpenAPI document."""
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components((Answer, PredictRequest, Problem), ref_template=_REF + "{name}")
        schemas.update(ours)
        for route in self.routes:
            operation = getattr(getattr(route, "endpoint", None), "operation", None)
            if isinstance(route, Route) and operation is not None:
                path = document["paths"].setdefault(route.path, {})
                path.update({method.lower(): operation for method in route.methods or ()})
        return document
