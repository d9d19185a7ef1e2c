"""Routes of the Open Inference Protocol v2, as the OpenAPI document tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anytime_service.openapi import PREDICT_OPERATION, PROBLEMS
from anytime_service.problems import MEDIA_TYPE

__all__ = ["OIP_OPERATIONS"]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _told(description: str, struct: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(struct)}}}


def _problems(*statuses: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _ref("InferProblem")}}
    return {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}


def _path(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": description}


_NAME = _path("name", "Name of the model, or name@version.")
_VERSION = _path("version", "Version of the model.")
_ASKING = [each for each in PREDICT_OPERATION["parameters"] if each["name"] != "model"]
_BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON_BYTES = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "How many bytes of the body are JSON, where tensors follow as bytes.",
}


def _operation(name: str, summary: str, answer: dict[str, Any], *statuses: int) -> dict[str, Any]:
    return {
        "operationId": f"oip_{name}",
        "tags": ["open inference protocol"],
        "summary": summary,
        "responses": {"200": answer} | _problems(*statuses, 500),
    }


def _model(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    told = _told("The model, its inputs and outputs", "InferModel")
    return _operation(name, "Tell a model's inputs and outputs", told, 404) | {"parameters": parameters}


def _model_ready(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    told = _told("The model answers", "InferModelState")
    return _operation(name, "Tell whether a model answers", told, 404) | {"parameters": parameters}


def _infer(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    summary = "Predict from a subset of a model's inputs"
    told = _told("The prediction; also when the deadline has struck", "InferReply")
    told["content"] |= _BINARY
    return _operation(name, summary, told, 400, 404, 413, 415, 422, 503) | {
        "description": "The best prediction that the inputs allow within the budget. `budget`, `deadline_ms`, `policy` "
        "and `ranking` are parameters of the request, or of the query. A body of JSON counts when it is whole; of "
        "tensors that follow it as bytes (the binary tensor extension), each counts when it has come. When the "
        "deadline strikes, the answer is the best from what counts, at once: 200, with the parameter `complete` false. "
        "The JSON's own deadline holds when the JSON has come, those of the head from the beginning.",
        "parameters": [*parameters, *_ASKING, _JSON_BYTES],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("InferRequest")}} | _BINARY,
        },
    }


OIP_OPERATIONS: Mapping[str, Mapping[str, Any]] = {
    "server": _operation("server", "Tell of the server", _told("The server and what it adds", "InferServer")),
    "live": _operation("live", "Tell whether the process answers", _told("It does", "InferServerState")),
    "ready": _operation("ready", "Tell whether there are models", _told("There are", "InferServerState"), 503),
    "model": _model("model", [_NAME]),
    "model_ready": _model_ready("model_ready", [_NAME]),
    "infer": _infer("infer", [_NAME]),
    "version": _model("version", [_NAME, _VERSION]),
    "version_ready": _model_ready("version_ready", [_NAME, _VERSION]),
    "version_infer": _infer("version_infer", [_NAME, _VERSION]),
}
"""What each route documents, by its name."""
