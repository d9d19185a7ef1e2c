"""Calibrated models: intervals and prediction sets by every binding, as the library tells them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.inference.prediction import Prediction
from anytime.model.manifest import Calibration
from anytime.model.model import Model
from anytime_service.api.console import pages
from anytime_service.client import Client
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from service.inferring import assert_refused, assert_told, binary, infer, output, post, tensors, unpacked
from service.serving import (
    LIKELIHOODS,
    VALUES,
    Running,
    expected,
    likelihood_model,
    packed,
    run_service,
    small_model,
    timeless,
    trained_model,
)

CLASSES = ("car", "cyclist", "walker")
TWO_ROWS: dict[str, Any] = {"speed": [[2.0], [3.0]], "hog": [[1.0, -1.0], [0.0, 4.0]], "lab": [[0.5], [1.5]]}


def sure(model: Model, *thresholds: float) -> Model:
    """The model, calibrated with these thresholds."""
    classes = model.manifest.classes
    found = Calibration(
        coverage=0.9,
        level=0.9,
        rows=99,
        data="by hand",
        thresholds=thresholds,
        sizes=(1.0,) * len(thresholds),
        reliability=None if classes is None else (0.1,) * len(thresholds),
    )
    return replace(model, manifest=model.manifest.model_copy(update={"calibration": found}))


NUMBERS = (2.0, 1.5, 1.0, 0.5)
SHARES = (0.8, 0.7, 0.65, 0.6)
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        sure(small_model(), *NUMBERS),
        sure(small_model("pair", responses=2), *NUMBERS),
        sure(small_model("kind", responses=3, classes=CLASSES), *SHARES),
        sure(small_model("sick", classes=("no", "yes")), *SHARES),
        sure(trained_model(), *NUMBERS),
        *(sure(likelihood_model(name), *(NUMBERS if name == "poisson" else SHARES)) for name in LIKELIHOODS),
        small_model("plain"),
    )
}
SURE = [name for name in MODELS if name != "plain"]


def by_every_binding(service: Running, groups: dict[str, Any], rows: int, options: dict[str, Any]) -> dict[str, Any]:
    """Answers by the name of the binding."""
    answers: dict[str, Any] = {}
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            stream.say("begin", 1, rows=rows, **options)
            stream.groups(1, {name: packed(values) if form is MSGPACK else values for name, values in groups.items()})
            stream.say("end", 1)
            answers[f"stream, {form.name}"] = stream.answer(1)
    query = {**options, "rows": rows}
    with httpx.Client(base_url=service.url, timeout=30) as client:
        answers["post"] = client.post("/predict", params=query, json={"groups": groups}).json()
        body = MSGPACK.encode({"groups": {name: packed(values) for name, values in groups.items()}})
        given = client.post("/predict", params=query, content=body, headers={"content-type": MSGPACK.media_type})
        answers["post, packed"] = msgspec.msgpack.decode(given.content)
        lines = "".join(json.dumps({"group": name, "values": values}) + "\n" for name, values in groups.items())
        kind = {"content-type": "application/x-ndjson"}
        answers["post, lines"] = client.post("/predict", params=query, content=lines.encode(), headers=kind).json()
        session = client.post("/sessions", json={"rows": rows, "model": options["model"]}).json()["id"]
        assert client.post(f"/sessions/{session}/groups", json=groups).status_code == 200
        rest = {name: value for name, value in options.items() if name != "model"}
        answers["session"] = client.get(f"/sessions/{session}/predict", params=rest).json()
        answers["session, by query"] = client.get("/predict", params={**rest, "session": session}).json()
    return answers


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("rows", "options"), [(2, {}), (1, {"budget": 5}), (2, {"policy": "arrived"})], ids=["all", "budget", "arrived"]
)
def test_every_binding_tells_the_interval_or_the_set_of_the_library(
    service: Running, name: str, rows: int, options: dict[str, Any]
) -> None:
    model = MODELS[name]
    groups = {group: values[:rows] for group, values in TWO_ROWS.items()}
    answer = expected(model, groups, rows=rows, **options)
    covering = answer["interval"] if model.manifest.classes is None else answer["prediction_set"]
    assert (covering is None) == (name == "plain")
    for binding, actual in by_every_binding(service, groups, rows, {"model": name, **options}).items():
        assert timeless(actual) == answer, binding
        assert (actual["interval"], actual["prediction_set"]) == (answer["interval"], answer["prediction_set"]), binding


def test_an_interval_is_that_of_the_prefix_that_answers(service: Running) -> None:
    with service.stream() as stream:
        stream.say("begin", 7, model="brake", updates=True)
        found = []
        for group, values in VALUES.items():
            stream.say("group", 7, group=group, values=values)
            found.append(stream.hear())
    stages = [expected(MODELS["brake"], dict(list(VALUES.items())[:k])) for k in (1, 2, 3)]
    assert [each["type"] for each in found] == ["update", "update", "answer"]
    assert [each["interval"] for each in found] == [each["interval"] for each in stages]
    widths = [high - low for low, high in (each["interval"] for each in found)]
    assert widths == pytest.approx([3.0, 2.0, 1.0], rel=1e-9)


def test_a_deadline_that_has_struck_gives_the_interval_of_the_base_rate(service: Running) -> None:
    answer = service.post({"groups": {}}, model="brake", deadline_ms=0).json()
    assert (answer["prefix"], answer["reason"]) == (0, "deadline")
    assert answer["interval"] == pytest.approx([8.0, 12.0], rel=1e-9)


def test_groups_that_are_no_prefix_have_no_interval(service: Running) -> None:
    for name in ("lens", "binomial", "poisson"):
        second = MODELS[name].computed[2][-1]
        answer = service.post({"groups": {second: VALUES[second]}}, model=name, policy="arrived").json()
        assert answer["policy"] == "arrived"
        assert (answer["interval"], answer["prediction_set"]) == (None, None)


def test_an_interval_that_is_not_finite_is_a_problem_and_never_null(settings: Settings) -> None:
    model = sure(small_model(), *NUMBERS)
    wide = replace(model, prefixes=replace(model.prefixes, response_scale=np.array([1.7e308])))
    with run_service([wide], settings) as service:
        response = service.post({"groups": {}})
        assert (response.status_code, response.json()["field"]) == (422, "groups")
        with service.stream() as stream:
            stream.say("begin", 1)
            stream.say("end", 1)
            assert stream.problem()["field"] == "groups"
        assert_refused(post(service, b'{"inputs": []}'), 422, "inputs", "not a finite number")


# Descriptions


@pytest.mark.parametrize("name", SURE)
def test_a_model_tells_what_it_is_calibrated_for(service: Running, name: str) -> None:
    found = MODELS[name].manifest.calibration
    assert found is not None
    calibration = service.get(f"/models/{name}").json()["calibration"]
    assert (calibration["coverage"], calibration["level"], calibration["rows"]) == (0.9, 0.9, 99)
    assert Calibration.model_validate_json(json.dumps(calibration)) == found
    with Client(service.url) as client:
        assert client.model(name).calibration == found


def test_a_model_that_is_not_calibrated_tells_so(service: Running) -> None:
    assert service.get("/models/plain").json()["calibration"] is None


@pytest.mark.parametrize("name", SURE)
def test_the_client_has_the_answer_of_the_library(service: Running, name: str) -> None:
    model = MODELS[name]
    with Client(service.url) as client:
        answer = client.predict(VALUES, model=name)
    prediction = Prediction(model)
    for group, values in VALUES.items():
        prediction.add(group, values)
    own = prediction.answer()
    assert (answer.interval, answer.prediction_set) == (own.interval, own.prediction_set)
    assert (own.interval, own.prediction_set) != (None, None)


# Open Inference Protocol


@pytest.mark.parametrize("name", SURE)
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
        assert_told(reply, answer)
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
    wanted = json.dumps({"inputs": [], "outputs": [{"name": "interval"}]}).encode()
    for name in ("plain", "kind"):
        assert_refused(post(service, wanted, model=name), 422, "outputs[0].name", "no output 'interval'")
    assert "interval" not in {each["name"] for each in service.get("/v2/models/plain").json()["outputs"]}


def test_what_is_not_known_is_left_out_of_the_outputs(service: Running) -> None:
    second = MODELS["lens"].computed[2][-1]
    inputs, parameters = tensors({second: [VALUES[second]]}), {"policy": "arrived"}
    for outputs in ([], [{"name": "prediction"}, {"name": "interval"}]):
        reply = infer(service, inputs, "lens", parameters=parameters, **({"outputs": outputs} if outputs else {}))
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


def test_the_console_says_how_sure_an_answer_is(tmp_path: Path) -> None:
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node here")
    words = tmp_path / "words.mjs"
    shutil.copy(pages.STATIC / "words.js", words)
    rest = {"probabilities": None, "interval": None, "expected": {"cv_error": 4}}
    given = json.dumps([[model, rest | answer] for model, answer, _ in SAID])
    script = (
        f"import {{ bar, bars, doubt }} from {json.dumps(words.as_uri())};"
        f"const said = {given}.map(([model, answer]) => [doubt(model, answer),"
        " Array.isArray(answer.prediction) ? bars(model, answer) : bar(model, answer)]);"
        "console.log(JSON.stringify(said));"
    )
    done = subprocess.run(
        [program, "--input-type=module", "--eval", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [each[0] for each in said] == [words for _, _, words in SAID]
    assert [each[1] for each in said[:4]] == [[1.25, 4.5], [[1, 4], [0, 2]], [1, 5], [1, 5]]
