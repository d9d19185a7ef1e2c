"""Open Inference Protocol v2: models, answers to parts of the inputs, refusals, and bodies that come in pieces."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest

from anytime_service.schemas.messages import DATATYPES
from anytime_service.settings import Settings
from models.test_names import GROUPS, frame, model
from service.inferring import (
    CLASSES,
    JSON_BYTES,
    MODELS,
    TWO_ROWS,
    assert_refused,
    assert_reported,
    binary,
    half_sent,
    infer,
    output,
    post,
    tensor,
    tensors,
    unpacked,
)
from service.serving import (
    BASE_RATE,
    VALUES,
    Running,
    changed,
    expected,
    problem_in,
    run_service,
    small_model,
    timeless,
)


def test_the_server_tells_what_it_is_and_what_it_adds(service: Running) -> None:
    reported = service.get("/v2").json()
    assert set(reported) == {"name", "version", "extensions"}
    assert {"binary_tensor_data", "anytime_partial_input"} <= set(reported["extensions"])
    for probe in ("live", "ready"):
        assert service.get(f"/v2/health/{probe}").json() == {"live": True, "ready": True}


@pytest.mark.parametrize("path", ["/v2/models/brake", "/v2/models/brake/versions/v1", "/v2/models/brake@v1"])
def test_a_model_tells_its_inputs_in_the_order_of_the_sequence(service: Running, path: str) -> None:
    reported = service.get(path).json()
    assert (reported["name"], reported["versions"], reported["platform"]) == ("brake", ["v1"], "anytime_safetensors")
    assert [(each["name"], each["datatype"], each["shape"]) for each in reported["inputs"]] == [
        ("speed", "FP64", [-1, 1]),
        ("hog", "FP64", [-1, 2]),
        ("lab", "FP64", [-1, 1]),
    ]
    lab = reported["inputs"][2]["parameters"]
    assert lab == {"features": '["l0"]', "cost": 3.0, "step": 3, "prefix_cost": 10.0}
    assert reported["outputs"] == [{"name": "prediction", "datatype": "FP64", "shape": [-1, 1]}]
    parameters = {"task": "regression", "family": "gaussian", "link": "identity"}
    assert reported["parameters"] == parameters | {"steps": 3, "cost_unit": "ms", "total_cost": 10.0}
    assert service.get(f"{path}/ready").json() == {"name": "brake", "ready": True}


def test_a_model_of_classes_tells_its_classes(service: Running) -> None:
    prediction, probabilities = service.get("/v2/models/kind").json()["outputs"]
    assert prediction == {"name": "prediction", "datatype": "BYTES", "shape": [-1, 1]}
    assert probabilities["shape"] == [-1, 3]
    assert json.loads(probabilities["parameters"]["classes"]) == list(CLASSES)


@pytest.mark.parametrize("path", ["/v2/models/break", "/v2/models/brake/versions/v9", "/v2/models/brake@v9"])
def test_what_is_not_there_is_404(service: Running, path: str) -> None:
    for each in (service.get(path), service.get(f"{path}/ready"), httpx.post(f"{service.url}{path}/infer")):
        assert_refused(each, 404, "model", "'bre" if "break" in path else "'v9'")


def test_a_version_is_chosen_by_the_path(settings: Settings) -> None:
    old = small_model()
    new = changed(old, version="v2", provenance=old.manifest.provenance.model_copy(update={"created": "2025-01-01"}))
    with run_service([old, new], settings) as service:
        assert service.get("/v2/models/brake").json()["versions"] == ["v2", "v1"]
        for model, version in (("brake", "v2"), ("brake/versions/v1", "v1"), ("brake@v1", "v1")):
            assert infer(service, [], model)["model_version"] == version


# Answers


@pytest.mark.parametrize("budget", [None, 0, 1, 5, 9.99, 1000])
@pytest.mark.parametrize("names", [[], ["speed"], ["hog"], ["lab", "speed"], ["speed", "hog"], ["lab", "hog", "speed"]])
def test_a_part_of_the_inputs_is_answered_as_the_library_answers(
    service: Running, names: list[str], budget: float | None
) -> None:
    groups = {name: [VALUES[name]] for name in names}
    parameters = {} if budget is None else {"budget": budget}
    answer = expected(MODELS["brake"], groups, budget)
    assert_reported(infer(service, tensors(groups), parameters=parameters), answer)
    content, headers = binary(groups, parameters=parameters)
    assert_reported(post(service, content, headers).json(), answer)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2])
def test_every_kind_of_model_answers_rows_as_the_library_does(service: Running, name: str, rows: int) -> None:
    groups = {group: values[:rows] for group, values in TWO_ROWS.items()}
    model = MODELS[name]
    answer = expected(model, groups, rows=rows)
    reply = infer(service, tensors(groups), name)
    if name == "mixed":
        answer["prediction"] = [str(each) for each in np.ravel(np.array(answer["prediction"], dtype=object))]
    assert_reported(reply, answer)
    assert output(reply).shape == (rows, 2 if name == "pair" else 1)
    if answer["probabilities"] is not None:
        np.testing.assert_array_equal(output(reply, "probabilities"), np.reshape(answer["probabilities"], (rows, -1)))


@pytest.mark.parametrize(
    ("name", "datatype"),
    [("kind", "BYTES"), ("sick", "BYTES"), ("digit", "INT64"), ("flag", "BOOL"), ("grade", "FP64"), ("mixed", "BYTES")],
)
def test_names_of_classes_have_a_datatype_that_holds_them_all(service: Running, name: str, datatype: str) -> None:
    assert service.get(f"/v2/models/{name}").json()["outputs"][0]["datatype"] == datatype
    plain = infer(service, tensors(TWO_ROWS), name)["outputs"][0]
    assert plain["datatype"] == datatype
    content, headers = binary(TWO_ROWS, parameters={"binary_data_output": True})
    _, blobs = unpacked(post(service, content, headers, name))
    if datatype == "BYTES":
        texts = [text.encode() for text in plain["data"]]
        assert blobs["prediction"] == b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        kinds = {"INT64": "<i8", "BOOL": "?", "FP64": "<f8"}
        assert np.frombuffer(blobs["prediction"], kinds[datatype]).tolist() == plain["data"]


def test_missing_values_are_null_in_json_and_nan_in_bytes(service: Running) -> None:
    groups = {"speed": [[2.0], [None]], "hog": [[1, None], [True, 2]]}
    answer = expected(MODELS["brake"], groups, rows=2)
    assert answer["imputed"] == ["v", "h1"]
    assert_reported(infer(service, tensors(groups)), answer)
    floats = {name: np.array(values, dtype=np.float64) for name, values in groups.items()}
    content, headers = binary(floats)
    assert_reported(post(service, content, headers).json(), answer)


@pytest.mark.parametrize(
    ("datatype", "nan"), [("FP32", "0000a07f"), ("FP64", "000000000000f47f"), ("FP64", "00" * 6 + "f8ff")]
)
def test_every_nan_that_bytes_can_spell_is_a_missing_value(service: Running, datatype: str, nan: str) -> None:
    content, headers = binary({"speed": [[0.0]]}, datatype)
    content = content[: int(headers[JSON_BYTES])] + bytes.fromhex(nan)
    assert_reported(post(service, content, headers).json(), expected(MODELS["brake"], {"speed": [None]}))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_is_read_in_json_and_as_bytes(service: Running, datatype: str) -> None:
    groups = {"speed": [[1], [0]], "hog": [[1, 1], [0, 1]]}
    answer = expected(MODELS["brake"], groups, rows=2)
    assert_reported(infer(service, [tensor(name, values, datatype) for name, values in groups.items()]), answer)
    content, headers = binary(groups, datatype)
    assert_reported(post(service, content, headers).json(), answer)


def test_tensors_in_json_and_as_bytes_go_together(service: Running) -> None:
    hog, headers = binary({"hog": [[1.0, -1.0]]}, "FP32")
    size = int(headers[JSON_BYTES])
    inputs = [tensor("speed", [[2.0]]), *json.loads(hog[:size])["inputs"], tensor("lab", [[0.5]])]
    head = json.dumps({"inputs": inputs}).encode()
    response = post(service, head + hog[size:], {JSON_BYTES: str(len(head))})
    assert_reported(response.json(), expected(MODELS["brake"], VALUES))


def test_the_id_comes_back_where_there_is_one(service: Running) -> None:
    assert infer(service, [], id="forty-two")["id"] == "forty-two"
    assert "id" not in infer(service, [])


def test_members_that_clients_add_are_let_pass(service: Running) -> None:
    hints = {"content_type": "np", "headers": None}
    inputs = [tensor("speed", [[2.0]], parameters=hints)]
    reply = infer(service, inputs, model_name="x", model_version="y", parameters=hints, outputs=None, id=None)
    assert reply["parameters"]["prefix"] == 1


def test_outputs_are_those_that_were_asked_for_in_their_order(service: Running) -> None:
    for names in (["prediction", "probabilities"], ["ranking", "probabilities"]):
        wanted = [{"name": name} for name in names] if "ranking" in names else None
        reply = infer(service, tensors(TWO_ROWS), "sick", outputs=wanted)
        assert [each["name"] for each in reply["outputs"]] == names
    answer = expected(MODELS["sick"], TWO_ROWS, rows=2, ranking=True)
    assert output(reply, "ranking").tolist() == answer["ranking"]


@pytest.mark.parametrize(("everything", "own"), [(True, None), (True, False), (False, True), (None, True)])
def test_outputs_are_sent_as_bytes_where_that_was_asked_for(service: Running, everything: Any, own: Any) -> None:
    wanted = [{"name": "probabilities", "parameters": {"binary_data": own}}, {"name": "prediction"}]
    content = json.dumps(
        {"inputs": tensors(TWO_ROWS), "outputs": wanted, "parameters": {"binary_data_output": everything}}
    ).encode()
    reply, blobs = unpacked(post(service, content, model="kind"))
    there = {"probabilities": bool(everything if own is None else own), "prediction": bool(everything)}
    assert {each["name"]: "data" not in each for each in reply["outputs"]} == there
    likely = (
        np.frombuffer(blobs["probabilities"]).reshape(2, 3)
        if there["probabilities"]
        else output(reply, "probabilities")
    )
    np.testing.assert_array_equal(likely, expected(MODELS["kind"], TWO_ROWS, rows=2)["probabilities"])


def test_the_query_says_what_the_json_does_not(service: Running) -> None:
    said = json.dumps({"inputs": tensors(VALUES), "parameters": {"budget": 5}}).encode()
    assert post(service, said, rows=1).json()["parameters"]["prefix"] == 2


def test_contributions_are_json_in_a_parameter(service: Running) -> None:
    reply = infer(service, tensors(VALUES), parameters={"explain": True})
    assert (
        json.loads(reply["parameters"]["contributions"])
        == expected(MODELS["brake"], VALUES, explain=True)["contributions"]
    )
    assert "contributions" not in infer(service, tensors(VALUES))["parameters"]


# What is refused, and how that is reported.


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
        (
            [tensor("speed", [[1]], parameters={"binary_data_size": -8})],
            400,
            "inputs[0].parameters.binary_data_size",
            ">= 0",
        ),
        ([{"name": "speed", "datatype": "FP64", "data": [1]}], 400, "inputs[0]", "missing required field `shape`"),
        ([SPEED | {"dtype": "FP64"}], 400, "inputs[0]", "unknown field `dtype`"),
        ([tensor("speed", [[1e200]])], 422, "inputs[0].data", "beyond 1e+100"),
        ([SPEED, tensor("hog", [[1, -1e200]])], 422, "inputs[1].data", "'h1'"),
    ],
)
def test_an_input_that_cannot_be_names_its_place(
    service: Running, inputs: Any, status: int, field: str, words: str
) -> None:
    assert_refused(post(service, json.dumps({"inputs": inputs}).encode()), status, field, words)
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
    response = httpx.post(f"{service.url}/v2/models/brake/infer", content=body, headers=headers, timeout=60)
    assert (response.status_code, words in response.text) == (status, True), response.text
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
    problem = problem_in(post(service, content, headers), 422)
    assert (words in problem["detail"], problem["field"].startswith("inputs[0]")) == (True, True), problem


def test_what_is_wrong_is_told_though_the_budget_needs_none_of_it(service: Running) -> None:
    content = json.dumps({"inputs": [tensor("speed", [1, 2], shape=[1, 1])], "parameters": {"budget": 0}}).encode()
    assert_refused(post(service, content), 422, "inputs[0].data")


# Bodies that come in pieces, late or never.


@pytest.mark.parametrize(
    ("query", "headers"),
    [("deadline_ms=50", {}), ("", {"Request_Timeout_Ms": "50"}), ("deadline_ms=1900", {"grpc_timeout": "50m"})],
)
def test_an_unfinished_body_is_answered_with_the_base_rate(service: Running, query: str, headers: Any) -> None:
    content = json.dumps({"id": "7", "inputs": tensors(TWO_ROWS)}).encode()
    with half_sent(service, content, len(content) // 2, query=f"{query}&rows=2", **headers) as connection:
        status, reported, reply = connection.response()
        connection.send(content[len(content) // 2 :])
    assert (status, reported["content-type"]) == (200, "application/json")
    assert output(reply).tolist() == [[BASE_RATE]] * 2
    assert (reply["parameters"]["reason"], reply["parameters"]["complete"]) == ("deadline", False)


@pytest.mark.parametrize("parameters", [{"deadline_ms": 400}, {"timeout": 400_000}, {"timeout": 0, "deadline_ms": 400}])
def test_the_deadline_in_the_json_holds_while_tensors_come_and_those_that_came_count(
    service: Running, parameters: Any
) -> None:
    content, headers = binary(TWO_ROWS, parameters=parameters, id="7")
    sent = int(headers[JSON_BYTES]) + 16 + 31  # speed, and all but a byte of hog
    with half_sent(service, content, sent, **{JSON_BYTES: headers[JSON_BYTES]}) as connection:
        _, _, reply = connection.response()
    assert_reported(reply, expected(MODELS["brake"], {"speed": TWO_ROWS["speed"]}, rows=2))
    assert (reply["id"], reply["parameters"]["reason"]) == ("7", "deadline")


def test_a_tensor_counts_when_it_has_come_however_the_body_is_cut(service: Running) -> None:
    content, headers = binary(TWO_ROWS, parameters={"budget": 5})
    at = int(headers[JSON_BYTES])
    for sent in (at + 16 + 32, at + 16 + 33):  # what the budget buys is there before the body has ended
        with half_sent(service, content, sent, **{JSON_BYTES: str(at)}) as connection:
            reply = connection.response()[2]
        assert_reported(reply, expected(MODELS["brake"], TWO_ROWS, 5, rows=2))
        assert reply["parameters"]["reason"] == "budget"
    for cut in (1, at - 1, at, at + 1, at + 17, len(content) - 1):
        with half_sent(service, content, cut, **{JSON_BYTES: str(at)}) as connection:
            sleep(0.01)
            connection.send(content[cut:])
            assert_reported(connection.response()[2], expected(MODELS["brake"], TWO_ROWS, 5, rows=2))


# Names with any mark are inputs, each its own.


def test_every_name_is_a_group_of_a_request_and_inputs_of_its_own(settings: Settings) -> None:
    served = replace(model(), manifest=model().manifest.model_copy(update={"name": "m", "version": "v1"}))
    row = frame().iloc[0].to_dict()
    values = {group["name"]: [row[name] for name in group["features"]] for group in GROUPS["groups"]}
    reported = expected(served, values)
    with run_service([served], settings) as service:
        found = timeless(service.post({"groups": values}).json())
        for name in ("prediction", "probabilities", "groups", "imputed"):
            assert (
                found[name] == pytest.approx(reported[name])
                if name == "probabilities"
                else found[name] == reported[name]
            )
        kinds = service.get("/v2/models/m").json()["inputs"]
        assert len({kind["name"] for kind in kinds}) == len(kinds)
        inputs: list[dict[str, Any]] = []
        for kind in kinds:
            columns = json.loads(kind["parameters"]["features"])
            data = [row[column] for column in columns]
            inputs.append({"name": kind["name"], "datatype": kind["datatype"], "shape": [1, len(data)], "data": data})
        assert_reported(infer(service, inputs, "m"), reported)
    ambiguous = {'["lidar", "b:c"]', '["lidar:b", "c"]'}
    assert {kind["name"] for kind in kinds if kind["name"].startswith("[")} == ambiguous
    assert {"lidar:b:c", "lidar", "g:h", "g:h:t:x"} <= {kind["name"] for kind in kinds}
