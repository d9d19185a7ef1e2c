"""Open Inference Protocol v2: what is refused, and how that is reported."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from service.inferring import (
    JSON_BYTES,
    MODELS,  # noqa: F401  (those of the service)
    TWO_ROWS,
    assert_refused,
    binary,
    infer,
    post,
    tensor,
    tensors,
)
from service.serving import Running

SPEED = tensor("speed", [[2.0]])
HOG = tensor("hog", [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("inputs", "status", "field", "words"),
    [
        ([tensor("sped", [[1]])], 422, "inputs[0].name", "did you mean 'speed'"),
        ([SPEED, tensor("blood", [[1]])], 422, "inputs[1].name", "has no features"),
        ([SPEED, HOG, SPEED], 422, "inputs[2].name", "more than once"),
        ([SPEED, tensor("hog", [[1, 2], [3, 4]])], 422, "inputs[1].shape", "has 2 rows"),
        ([tensor("speed", [[1]], "FLOAT")], 422, "inputs[0].datatype", "expected one of FP64"),
        ([tensor("speed", [["1"]], "BYTES")], 422, "inputs[0].datatype", "expected one of FP64"),
        ([tensor("speed", [[1]], "BYTES")], 422, "inputs[0].datatype", "expected one of FP64"),
        ([tensor("speed", [[1.5]], "INT32")], 422, "inputs[0].data", "has 1.5; expected INT32 values"),
        ([tensor("speed", [[300]], "UINT8")], 422, "inputs[0].data", "has 300"),
        ([tensor("speed", [[2**63]], "INT64")], 422, "inputs[0].data", "has 9.22337e+18"),
        ([tensor("speed", [[-1]], "UINT64")], 422, "inputs[0].data", "has -1"),
        ([tensor("speed", [[2]], "BOOL")], 422, "inputs[0].data", "has 2"),
        (
            [tensor("speed", [["fast"]])],
            422,
            "inputs[0].data[0][0]",
            "group 'speed': column 'v' has 'fast'; expected a number",
        ),
        ([tensor("speed", [[{}]])], 400, "inputs[0].data[0][0]", "got `object`"),
        ([tensor("speed", [[[1]]], shape=[1, 1])], 400, "inputs[0].data[0][0]", "got `array`"),
        ([tensor("speed", 1, shape=[1, 1])], 400, "inputs[0].data", "expected `array"),
        ([tensor("hog", [[1, 2], [3]], shape=[2, 2])], 422, "inputs[0].data", "ragged"),
        ([tensor("hog", [1, [2]], shape=[1, 2])], 422, "inputs[0].data", "ragged"),
        ([tensor("hog", [1, 2, 3], shape=[1, 2])], 422, "inputs[0].data", "'hog' are 1 x 3; expected 1 x 2"),
        ([tensor("hog", [], shape=[1, 2])], 422, "inputs[0].data", "'hog' are 1 x 0; expected 1 x 2"),
        ([tensor("hog", [[1], [2]], shape=[1, 2])], 422, "inputs[0].data", "'hog' are 2 x 1; expected 1 x 2"),
        ([tensor("hog", [1, 2], shape=[2, 1])], 422, "inputs[0].shape", "expected [rows, 2]"),
        ([tensor("hog", [1, 2], shape=[])], 422, "inputs[0].shape", "expected [rows, 2]"),
        ([tensor("hog", [1, 2], shape=[1, 1, 2])], 422, "inputs[0].shape", "expected [rows, 2]"),
        ([tensor("hog", [], shape=[0, 2])], 422, "inputs[0].shape", "rows being 1 or more"),
        ([tensor("hog", [1, 2], shape=[-1, 2])], 400, "inputs[0].shape[0]", ">= 0"),
        ([tensor("hog", [1, 2], shape=[1.5, 2])], 400, "inputs[0].shape[0]", "expected `int`"),
        ([tensor("hog", [1, 2], shape=[51, 2])], 422, "inputs[0].shape", "1 to 50"),
        ([tensor("hog", [1, 2], shape=[2**62, 2])], 422, "inputs[0].shape", "1 to 50"),
        ([tensor("hog", [1, 2], shape=[10**30, 2])], 400, "inputs[0].shape[0]", "expected `int`"),
        ([tensor("speed", None, shape=[1, 1])], 422, "inputs[0].data", "has no data"),
        ([tensor("speed", [[1]], parameters={"binary_data_size": 8})], 422, "inputs[0].data", "has both data and"),
        ([tensor("speed", [[1]], parameters={"shared_memory_region": "x"})], 400, "inputs[0].parameters", "unknown"),
        ([tensor("speed", [[1]], parameters={"binary_data_size": -8})], 400, None, ">= 0"),
        ([{"name": "speed", "datatype": "FP64", "data": [1]}], 400, "inputs[0]", "missing required field `shape`"),
        ([SPEED | {"dtype": "FP64"}], 400, "inputs[0]", "unknown field `dtype`"),
        ([tensor("speed", [[1e200]])], 422, "inputs[0].data", "beyond 1e+100"),
        ([SPEED, tensor("hog", [[1, -1e200]])], 422, "inputs[1].data", "'h1'"),
    ],
)
def test_an_input_that_cannot_be_names_its_place(
    service: Running, inputs: Any, status: int, field: str | None, words: str
) -> None:
    response = post(service, json.dumps({"inputs": inputs}).encode())
    if field is None:
        field = "inputs[0].parameters.binary_data_size"
    assert_refused(response, status, field, words)
    assert infer(service, [SPEED])["parameters"]["prefix"] == 1


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        (b"", 400, None, "not JSON"),
        (b"{", 400, None, "not JSON"),
        (b"\xff", 400, None, "not JSON"),
        (b"[]", 400, None, "expected `object`"),
        (b"{}", 400, None, "missing required field `inputs`"),
        (b'{"inputs": null}', 400, "inputs", "expected `array`"),
        (b'{"inputs": [1]}', 400, "inputs[0]", "expected `object`"),
        (b'{"inputs": [], "id": 7}', 400, "id", "expected `str"),
        (b'{"inputs": [], "output": []}', 400, None, "unknown field `output`"),
        (b'{"inputs": [{"data": [NaN]}]}', 400, None, "not JSON"),
        (
            b'{"inputs": [{"name": "speed", "shape": [1, 1], "datatype": "FP64", "data": [1e999]}]}',
            400,
            "inputs[0].data[0]",
            "out of range",
        ),
        (b'{"inputs": ' + b"[" * 9000 + b"]" * 9000 + b"}", 400, "inputs[0]", "expected `object`"),
        (b'{"inputs": [], "parameters": {"headers": {"a": ' + b"[" * 9000 + b"]" * 9000 + b"}}}", 400, None, "nested"),
        (b'{"inputs": [], "parameters": {"bugdet": 1}}', 400, "parameters", "unknown field `bugdet`"),
        (b'{"inputs": [], "parameters": {"budget": -1}}', 400, "parameters.budget", ">= 0"),
        (b'{"inputs": [], "parameters": {"budget": "1"}}', 400, "parameters.budget", "got `str`"),
        (b'{"inputs": [], "parameters": {"deadline_ms": -1}}', 400, "parameters.deadline_ms", ">= 0"),
        (b'{"inputs": [], "parameters": {"policy": "worst"}}', 400, "parameters.policy", "'worst'"),
        (b'{"inputs": [], "parameters": {"rows": 51}}', 422, "rows", "expected 1 to 50"),
        (b'{"inputs": [], "parameters": {"model": "brake"}}', 422, "parameters.model", "option of the address"),
        (b'{"inputs": [], "parameters": {"updates": true}}', 422, "parameters.updates", "option of a begin message"),
        (
            b'{"inputs": [], "outputs": [{"name": "ranking"}], "parameters": {"ranking": false}}',
            422,
            "ranking",
            "ranking is true in the outputs and false in the body",
        ),
        (b'{"inputs": [], "model_name": "kind"}', 422, "model_name", "'kind' in the body and 'brake' in the path"),
        (
            json.dumps({"inputs": tensors(TWO_ROWS), "parameters": {"rows": 3}}).encode(),
            422,
            "rows",
            "rows is 2 in the inputs and 3 in the body; send it once",
        ),
        (b'{"inputs": [], "parameters": {"ranking": 1}}', 400, "parameters.ranking", "expected `bool"),
        (b'{"inputs": [], "parameters": [1]}', 400, "parameters", "expected `object"),
        (b'{"inputs": [], "outputs": [{"name": "predictions"}]}', 422, "outputs[0].name", "mean 'prediction'"),
        (b'{"inputs": [], "outputs": [{"name": "probabilities"}]}', 422, "outputs[0].name", "no output"),
        (b'{"inputs": [], "outputs": [{"name": "ranking"}, {"name": "ranking"}]}', 422, "outputs[1].name", "once"),
        (b'{"inputs": [], "outputs": [{"name": "", "parameters": {"k": 3}}]}', 400, "outputs[0].parameters", "`k`"),
    ],
)
def test_a_body_that_cannot_be_names_the_place(
    service: Running, body: bytes, status: int, field: str | None, words: str
) -> None:
    assert_refused(post(service, body), status, field, words)
    assert infer(service, [SPEED])["parameters"]["prefix"] == 1


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ({"deadline": 5}, {}, "deadline"),
        ({"session": "x"}, {}, "session"),
        ({"budget": "cheap"}, {}, "budget"),
        ({}, {"Request-Timeout-Ms": "soon"}, "Request-Timeout-Ms"),
        ({}, {JSON_BYTES: "-5"}, JSON_BYTES),
        ({}, {JSON_BYTES: "ten"}, JSON_BYTES),
        ({}, {JSON_BYTES: "9" * 5000}, JSON_BYTES),
        ({}, {JSON_BYTES: "²".encode().decode("latin-1")}, JSON_BYTES),
    ],
)
def test_a_head_that_cannot_be_names_itself(service: Running, query: Any, headers: Any, field: str) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    assert_refused(post(service, b'{"inputs": []}', raw, **query), 422, field)


@pytest.mark.parametrize(
    "headers", [{"content-type": "text/csv"}, {"content-type": "application/msgpack"}, {"content-encoding": "gzip"}]
)
def test_another_form_of_body_is_415(service: Running, headers: dict[str, str]) -> None:
    assert_refused(post(service, b'{"inputs": []}', headers), 415)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("size", "reported", "more", "status", "words"),
    [
        (16, 0, b"", 200, ""),
        (8, 0, b"", 422, "make it 16"),
        (17, 0, b"", 422, "make it 16"),
        (2**62, 0, b"", 422, "make it 16"),
        (2**63, 0, b"", 400, "expected `int`"),
        (-1, 0, b"", 400, ">= 0"),
        (16, -1, b"", 400, "not JSON"),
        (16, 1, b"", 400, "not JSON"),
        (16, 10_000, b"", 400, "bytes"),
        (16, 0, b"1", 400, "bytes"),
        (16, 0, b"12345678", 400, "bytes"),
        (16, 0, None, 400, "bytes"),
    ],
)
def test_sizes_that_lie_are_found_out(
    service: Running, chunked: bool, size: int, reported: int, more: bytes | None, status: int, words: str
) -> None:
    hog = tensor("hog", [[0, 0]], data=None, parameters={"binary_data_size": size})
    head = json.dumps({"inputs": [hog]}).encode()
    content = head + bytes(16) + more if more is not None else head + bytes(15)
    headers = {JSON_BYTES: str(len(head) + reported)}
    body: Any = iter([content]) if chunked else content
    response = httpx.post(f"{service.url}/v2/models/brake/infer", content=body, headers=headers, timeout=30)
    if status == 200:
        assert response.status_code == 200
    else:
        problem = response.json()
        assert_refused(response, status, problem.get("field"), words)
    assert infer(service, [SPEED])["parameters"]["prefix"] == 1


def test_bytes_without_the_header_that_says_where_they_begin_are_refused(service: Running) -> None:
    content, headers = binary({"speed": [[1.0]]})
    assert_refused(post(service, content), 400)
    assert_refused(post(service, content[: int(headers[JSON_BYTES])]), 400, None, JSON_BYTES)


@pytest.mark.parametrize(
    ("values", "datatype", "words"),
    [([[np.inf]], "FP64", "infinite"), ([[-np.inf]], "FP16", "infinite"), ([[2]], "BOOL", "expected BOOL values")],
)
def test_bytes_that_are_no_usable_numbers_are_refused(service: Running, values: Any, datatype: str, words: str) -> None:
    content, headers = binary({"speed": values}, datatype)
    response = post(service, content, headers)
    assert_refused(response, 422, response.json().get("field"), words)
    assert response.json()["field"].startswith("inputs[0]")


def test_what_is_wrong_is_told_though_the_budget_needs_none_of_it(service: Running) -> None:
    content = json.dumps({"inputs": [tensor("speed", [1, 2], shape=[1, 1])], "parameters": {"budget": 0}}).encode()
    assert_refused(post(service, content), 422, "inputs[0].data")
