"""Requests and replies of the Open Inference Protocol v2, for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import numpy as np

from anytime.model.model import Model
from anytime_service.schemas.messages import DATATYPES
from anytime_service.schemas.problem import MEDIA_TYPE
from lazily import Lazy
from service.serving import (
    LIKELIHOODS,
    Connection,
    Running,
    changed,
    likelihood_model,
    picky_model,
    small_model,
    trained_model,
)

JSON_BYTES = "Inference-Header-Content-Length"
CLASSES = ("car", "cyclist", "wälker")
TWO_ROWS: dict[str, Any] = {"speed": [[2.0], [3.0]], "hog": [[1.0, -1.0], [0.0, 4.0]], "lab": [[0.5], [1.5]]}


def labelled(name: str, labels: tuple[Any, ...]) -> Model:
    """A model of as many classes as there are labels."""
    return changed(small_model(name, responses=len(labels), classes=CLASSES), classes=labels)


MODELS: Mapping[str, Model] = Lazy(
    {
        "brake": small_model,
        "pair": lambda: small_model("pair", responses=2),
        "sick": lambda: small_model("sick", classes=("no", "yes")),
        "kind": lambda: small_model("kind", responses=3, classes=CLASSES),
        "digit": lambda: labelled("digit", (3, 7, 9)),
        "flag": lambda: labelled("flag", (False, True)),
        "grade": lambda: labelled("grade", (1, 1.5, 2)),
        "mixed": lambda: labelled("mixed", (1, "two", 2**70)),
        "lens": trained_model,
        "picky": picky_model,
        **{family: partial(likelihood_model, family) for family in LIKELIHOODS},
    }
)


def tensor(name: str, values: Any, datatype: str = "FP64", **more: Any) -> dict[str, Any]:
    """An input in JSON."""
    shape = more.pop("shape") if "shape" in more else list(np.shape(values))
    reported = {"name": name, "shape": shape, "datatype": datatype, "data": values} | more
    return {key: value for key, value in reported.items() if value is not None}


def tensors(groups: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [tensor(name, values) for name, values in groups.items()]


def binary(groups: Mapping[str, Any], datatype: str = "FP64", **body: Any) -> tuple[bytes, dict[str, str]]:
    """A body with its tensors after the JSON, and its headers."""
    blobs = {name: np.array(values, DATATYPES[datatype]).tobytes() for name, values in groups.items()}
    reported = [
        tensor(name, values, datatype, data=None, parameters={"binary_data_size": len(blobs[name])})
        for name, values in groups.items()
    ]
    head = json.dumps({"inputs": reported, **body}).encode()
    headers = {JSON_BYTES: str(len(head)), "Content-Type": "application/octet-stream"}
    return head + b"".join(blobs.values()), headers


def post(service: Running, content: bytes, headers: Any = None, model: str = "brake", **query: Any) -> httpx.Response:
    return service.post_to(f"/v2/models/{model}/infer", content=content, headers=headers, params=query)


def infer(service: Running, inputs: list[dict[str, Any]], model: str = "brake", **body: Any) -> dict[str, Any]:
    response = post(service, json.dumps({"inputs": inputs, **body}).encode(), model=model)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    reply: dict[str, Any] = response.json()
    return reply


def output(reply: dict[str, Any], name: str = "prediction") -> Any:
    """Data of one output in its shape."""
    found = next(each for each in reply["outputs"] if each["name"] == name)
    return np.array(found["data"]).reshape(found["shape"])


def unpacked(response: httpx.Response) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A reply and the bytes of its tensors."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    at = int(response.headers[JSON_BYTES])
    reply: dict[str, Any] = json.loads(response.content[:at])
    blobs: dict[str, bytes] = {}
    for each in reply["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is not None:
            blobs[each["name"]] = response.content[at : at + size]
            at += size
    assert at == len(response.content)
    return reply, blobs


def assert_reported(reply: dict[str, Any], answer: dict[str, Any]) -> None:
    """The reply tells the library's answer."""
    parameters = dict(reply["parameters"])
    assert parameters.pop("elapsed_ms") >= 0
    assert parameters.pop("reason") in ("complete", "budget", "end", "deadline")
    for name in ("groups", "missing", "imputed", "clamped", "late_groups"):
        assert json.loads(parameters.pop(name)) == answer[name]
    for name, value in answer["expected"].items():
        assert parameters.pop(f"expected_{name}", None) == value
    assert parameters == {name: answer[name] for name in parameters}
    assert {"prefix", "steps", "cost", "cost_total", "complete", "policy"} <= set(parameters)
    assert all(isinstance(value, str | bool | int | float) for value in reply["parameters"].values())
    np.testing.assert_array_equal(output(reply).ravel(), np.ravel(answer["prediction"]))
    assert (reply["model_name"], reply["model_version"]) == (answer["model"], answer["version"])


def assert_refused(response: httpx.Response, status: int, field: str | None = None, words: str = "") -> None:
    """The response is a problem, and an error of the protocol too."""
    problem = response.json()
    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE), response.text
    assert {"type", "title", "status", "detail", "error"} <= set(problem)
    assert problem["error"] == problem["detail"]
    assert problem["status"] == status
    assert problem.get("field") == field, problem
    assert words in problem["error"], problem


def half_sent(
    service: Running, content: bytes, sent: int, model: str = "brake", query: str = "", **headers: str
) -> Connection:
    """A connection on which the beginning of a request has been sent."""
    lines = [f"POST /v2/models/{model}/infer?{query} HTTP/1.1", "Host: test", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection = service.connect()
    connection.send("\r\n".join([*lines, "", ""]).encode() + content[:sent])
    return connection
