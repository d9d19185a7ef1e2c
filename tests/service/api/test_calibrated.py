"""Calibrated models: what the Open Inference Protocol, the descriptions and the console say of intervals and sets.

`test_bindings.py` tests that every binding returns those of the library.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from anytime.model.manifest import Calibration
from anytime.model.model import Model
from anytime_service.api.console import pages
from anytime_service.client import Client
from anytime_service.settings import Settings
from lazily import Lazy
from service.inferring import TWO_ROWS, assert_refused, assert_reported, binary, infer, output, post, tensors, unpacked
from service.serving import VALUES, Running, changed, expected, run_service, small_model, timeless, trained_model
from system import program

CLASSES = ("car", "cyclist", "walker")
NUMBERS = (2.0, 1.5, 1.0, 0.5)
SHARES = (0.8, 0.7, 0.65, 0.6)


def sure(model: Model, *thresholds: float) -> Model:
    """The model, calibrated with these thresholds."""
    found = Calibration(
        coverage=0.9,
        level=0.9,
        rows=99,
        data="by hand",
        thresholds=thresholds,
        sizes=(1.0,) * len(thresholds),
        reliability=None if model.manifest.classes is None else (0.1,) * len(thresholds),
    )
    return changed(model, calibration=found)


MODELS: Lazy[str, Model] = Lazy(
    {
        "brake": lambda: sure(small_model(), *NUMBERS),
        "pair": lambda: sure(small_model("pair", responses=2), *NUMBERS),
        "kind": lambda: sure(small_model("kind", responses=3, classes=CLASSES), *SHARES),
        "sick": lambda: sure(small_model("sick", classes=("no", "yes")), *SHARES),
        "lens": lambda: sure(trained_model(), *NUMBERS),
        "plain": lambda: small_model("plain"),
    }
)


def test_an_interval_that_is_not_finite_is_a_problem_and_never_null(settings: Settings) -> None:
    model = sure(small_model(), *NUMBERS)
    wide = replace(model, prefixes=replace(model.prefixes, response_scale=np.array([1.7e308])))
    with run_service([wide], settings) as service:
        assert_refused(post(service, b'{"inputs": []}'), 422, "inputs", "not a finite number")
        assert service.post({"groups": {}}).json()["field"] == "groups"


@pytest.mark.parametrize("name", MODELS)
def test_the_description_has_the_calibration_and_the_client_its_answer(service: Running, name: str) -> None:
    model = MODELS[name]
    calibration = service.get(f"/models/{name}").json()["calibration"]
    assert (calibration and Calibration.model_validate_json(json.dumps(calibration))) == model.manifest.calibration
    with Client(service.url) as client:
        assert client.model(name).calibration == model.manifest.calibration
        answer = json.loads(json.dumps(asdict(client.predict(VALUES, model=name))))
    assert timeless(answer) == expected(model, VALUES)
    assert (answer["interval"] == answer["prediction_set"] is None) == (name == "plain")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "plain"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("pack", [False, True], ids=["json", "bytes"])
def test_what_covers_is_an_output_tensor(service: Running, name: str, rows: int, pack: bool) -> None:
    model = MODELS[name]
    groups = {group: values[:rows] for group, values in TWO_ROWS.items()}
    answer = expected(model, groups, rows=rows)
    classes = model.manifest.classes
    kind = "interval" if classes is None else "prediction_set"
    kinds = {each["name"]: each for each in service.get(f"/v2/models/{name}").json()["outputs"]}
    if pack:
        content, headers = binary(groups, parameters={"binary_data_output": True})
        reply, blobs = unpacked(post(service, content, headers, name))
        tensor = next(each for each in reply["outputs"] if each["name"] == kind)
        values = np.frombuffer(blobs[kind], "<f8" if classes is None else "?").reshape(tensor["shape"])
    else:
        reply = infer(service, tensors(groups), name)
        assert_reported(reply, answer)
        tensor, values = next(each for each in reply["outputs"] if each["name"] == kind), output(reply, kind)
    assert tensor["datatype"] == kinds[kind]["datatype"] == ("FP64" if classes is None else "BOOL")
    assert tensor["shape"] == [rows, *kinds[kind]["shape"][1:]]
    assert kinds[kind]["parameters"]["coverage"] == 0.9
    if classes is None:
        assert values.tolist() == np.reshape(answer["interval"], (rows, -1, 2)).tolist()
    else:
        assert json.loads(kinds[kind]["parameters"]["classes"]) == list(classes)
        sets = [[label for label, held in zip(classes, row, strict=True) if held] for row in values.tolist()]
        assert sets == ([answer["prediction_set"]] if rows == 1 else answer["prediction_set"])


def test_what_covers_can_be_asked_for_by_name(service: Running) -> None:
    for name, kind in (("brake", "interval"), ("kind", "prediction_set")):
        reply = infer(service, tensors(TWO_ROWS), name, outputs=[{"name": kind}])
        assert [each["name"] for each in reply["outputs"]] == [kind]
    for name in ("plain", "kind"):
        wanted = b'{"inputs": [], "outputs": [{"name": "interval"}]}'
        assert_refused(post(service, wanted, model=name), 422, "outputs[0].name", "no output 'interval'")
    assert "interval" not in {each["name"] for each in service.get("/v2/models/plain").json()["outputs"]}


def test_what_is_not_known_is_left_out_of_the_outputs(service: Running) -> None:
    second = MODELS["lens"].computed[2][-1]
    for outputs in ({}, {"outputs": [{"name": "prediction"}, {"name": "interval"}]}):
        inputs = tensors({second: [VALUES[second]]})
        reply = infer(service, inputs, "lens", parameters={"policy": "arrived"}, **outputs)
        assert [each["name"] for each in reply["outputs"]] == ["prediction"]


# The console


SQUARES, LIKELIHOOD = {"least_squares": True}, {"least_squares": False}
REGRESSION = {"task": "regression", "measures": SQUARES, "calibration": {"coverage": 0.9}}
SORTED = {"task": "multiclass", "measures": LIKELIHOOD, "calibration": {"coverage": 0.975}}
AMOUNT = {"task": "regression", "measures": LIKELIHOOD, "calibration": None}
PLAIN = {"task": "regression", "measures": SQUARES, "calibration": None}
SAID: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (REGRESSION, {"prediction": 3, "interval": [1.25, 4.5]}, "between 1.25 and 4.5 (90 %)"),
    (REGRESSION, {"prediction": [3, 1], "interval": [[1, 4], [0, 2]]}, "between 1 and 4, between 0 and 2 (90 %)"),
    (REGRESSION, {"prediction": 3, "interval": None}, "± 2"),
    (PLAIN, {"prediction": 3, "interval": None}, "± 2"),
    (AMOUNT, {"prediction": 3, "interval": None}, ""),  # a deviance is no square
    (SORTED, {"probabilities": [0.5, 0.3, 0.2], "prediction_set": ["a", "b"]}, "50.0 % likely; may be a, b (97.5 %)"),
    (SORTED, {"probabilities": [0.9, 0.1, 0.0], "prediction_set": ["a"]}, "90.0 % likely; no other (97.5 %)"),
    (SORTED, {"probabilities": [0.4, 0.3, 0.3], "prediction_set": []}, "40.0 % likely; none likely enough (97.5 %)"),
    (SORTED, {"probabilities": [0.4, 0.3, 0.3], "prediction_set": None}, "40.0 % likely"),
]


def test_the_console_says_how_sure_an_answer_is() -> None:
    rest = {"probabilities": None, "interval": None, "expected": {"cv_error": 4}}
    given = json.dumps([[model, rest | answer] for model, answer, _ in SAID])
    script = (
        f"import {{ bar, bars, doubt }} from {json.dumps(str(pages.STATIC / 'words.js'))};"
        f"const said = {given}.map(([model, answer]) => [doubt(model, answer),"
        " Array.isArray(answer.prediction) ? bars(model, answer) : bar(model, answer)]);"
        "console.log(JSON.stringify(said));"
    )
    command = [program("node"), "--input-type=module", "-e", script]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [each[0] for each in said] == [words for _, _, words in SAID]
    assert [each[1] for each in said[:4]] == [[1.25, 4.5], [[1, 4], [0, 2]], [1, 5], [1, 5]]
