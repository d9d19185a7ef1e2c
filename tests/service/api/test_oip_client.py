"""Open Inference Protocol v2 as a public client speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from service.inferring import MODELS, TWO_ROWS
from service.serving import BASE_RATE, Running, expected


@pytest.fixture(scope="module")
def triton(service: Running) -> Iterator[Any]:
    reason = "the public client is not installed: pip install 'tritonclient[http]'"
    pytest.importorskip("geventhttpclient", reason=reason)
    http = pytest.importorskip("tritonclient.http", reason=reason)
    with http.InferenceServerClient(f"127.0.0.1:{service.port}") as client:
        yield client


def triton_inputs(groups: Mapping[str, Any], in_bytes: bool, dtype: str = "f8") -> list[Any]:
    http: Any = pytest.importorskip("tritonclient.http")
    inputs = []
    for name, values in groups.items():
        array = np.array(values, dtype)
        each = http.InferInput(name, array.shape, {"f8": "FP64", "f4": "FP32", "i4": "INT32"}[dtype])
        inputs.append(each.set_data_from_numpy(array, binary_data=in_bytes))
    return inputs


def test_a_public_client_finds_its_way(triton: Any) -> None:
    assert (triton.is_server_live(), triton.is_server_ready()) == (True, True)
    models = (("brake",), ("brake", "v1"), ("break",))
    assert [triton.is_model_ready(*model) for model in models] == [True, True, False]
    assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
    assert [each["name"] for each in triton.get_model_metadata("kind", "v1")["inputs"]] == ["speed", "hog", "lab"]


@pytest.mark.parametrize("in_bytes", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize("names", [["speed"], ["hog", "speed"], ["lab", "hog", "speed"]])
def test_a_public_client_gets_the_librarys_answers(triton: Any, in_bytes: bool, dtype: str, names: list[str]) -> None:
    groups = {name: np.array(TWO_ROWS[name], dtype) for name in names}
    result = triton.infer("kind", triton_inputs(groups, in_bytes, dtype), request_id="9", parameters={"budget": 9.0})
    answer = expected(MODELS["kind"], groups, 9.0, rows=2)
    assert [text.decode() for text in result.as_numpy("prediction").ravel()] == answer["prediction"]
    np.testing.assert_array_equal(result.as_numpy("probabilities"), answer["probabilities"])
    reported = result.get_response()
    assert (reported["id"], reported["model_version"]) == ("9", "v1")
    assert (reported["parameters"]["prefix"], reported["parameters"]["complete"]) == (
        answer["prefix"],
        answer["complete"],
    )
    assert json.loads(reported["parameters"]["missing"]) == answer["missing"]


def test_a_public_client_chooses_outputs_and_deadlines(triton: Any) -> None:
    http: Any = pytest.importorskip("tritonclient.http")
    wanted = [http.InferRequestedOutput("ranking"), http.InferRequestedOutput("prediction", binary_data=False)]
    result = triton.infer("brake", triton_inputs(TWO_ROWS, True), "v1", wanted, parameters={"policy": "arrived"})
    answer = expected(MODELS["brake"], TWO_ROWS, rows=2, ranking=True)
    assert result.as_numpy("ranking").tolist() == answer["ranking"]
    assert result.as_numpy("prediction").ravel().tolist() == answer["prediction"]
    for result in (
        triton.infer("brake", triton_inputs(TWO_ROWS, True), parameters={"deadline_ms": 0}),
        triton.infer("brake", [], query_params={"rows": "2"}, timeout=1_000_000),
    ):
        assert result.as_numpy("prediction").tolist() == [[BASE_RATE]] * 2


def test_a_public_client_reads_our_errors(triton: Any) -> None:
    utils: Any = pytest.importorskip("tritonclient.utils")
    for call, status, words in (
        (partial(triton.infer, "break", []), "404", "did you mean 'brake'"),
        (partial(triton.infer, "brake", triton_inputs({"sped": [[1]]}, True)), "422", "did you mean 'speed'"),
        (partial(triton.infer, "brake", [], parameters={"bugdet": 1}), "400", "bugdet"),
        (partial(triton.get_model_metadata, "brake", "v9"), "404", "'v9'"),
    ):
        with pytest.raises(utils.InferenceServerException, match=words) as raised:
            call()
        assert raised.value.status() == status
