"""Open Inference Protocol v2: what there is, and answers to parts of the inputs."""

from __future__ import annotations

import json
import struct
from typing import Any

import httpx
import numpy as np
import pytest

from anytime_service.schemas.messages import DATATYPES
from anytime_service.settings import Settings
from service.inferring import (
    CLASSES,
    JSON_BYTES,
    MODELS,
    TWO_ROWS,
    assert_refused,
    assert_reported,
    binary,
    infer,
    output,
    post,
    tensor,
    tensors,
    unpacked,
)
from service.serving import VALUES, Running, changed, expected, run_service, small_model


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
