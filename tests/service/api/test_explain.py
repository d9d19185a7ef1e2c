"""`explain`: every way to request contributions, what they cost in size, and answers without any group.

`test_bindings.py` tests that every binding returns the library's contributions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from anytime.inference.contributions import Contributions
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.core import open_prediction
from anytime_service.limits.tuning import Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from service.inferring import infer, tensors
from service.serving import VALUES, Running, expected, run_service, running, small_model

BASE: dict[str, Any] = {"groups": {}, "features": {}}


def contributions(model: Model, groups: dict[str, Any], **options: Any) -> Any:
    return expected(model, groups, explain=True, **options)["contributions"]


def test_explain_is_a_parameter_a_field_of_the_body_and_of_begin(service: Running, model: Model) -> None:
    received = contributions(model, VALUES)
    assert set(received["groups"]) == set(VALUES)
    assert received["intercept"] + sum(received["features"].values()) == pytest.approx(
        expected(model, VALUES)["prediction"]
    )
    assert service.post({"groups": VALUES}, explain=True).json()["contributions"] == received
    assert service.post({"groups": VALUES, "explain": True}).json()["contributions"] == received
    assert service.post({"groups": VALUES}).json()["contributions"] is None
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            stream.say("begin", 1, explain=True, updates=True)
            stream.groups(1, {"speed": VALUES["speed"]})
            update = stream.hear()
            assert (update["type"], update["contributions"]) == ("update", contributions(model, {"speed": [2.0]}))
            stream.say("end", 1)
            assert stream.answer(1)["contributions"] == contributions(model, {"speed": [2.0]})


def test_open_inference_has_contributions_as_json_in_a_parameter(service: Running, model: Model) -> None:
    received = contributions(model, VALUES)
    groups = {name: [values] for name, values in VALUES.items()}
    reply = infer(service, tensors(groups), parameters={"explain": True})
    assert json.loads(reply["parameters"]["contributions"]) == received
    assert "contributions" not in infer(service, tensors(groups))["parameters"]


def test_an_answer_without_groups_has_the_intercept_alone(service: Running, model: Model) -> None:
    base = float(model.prefixes.intercept[0])
    for body, query in (({"groups": {}}, {}), ({"groups": VALUES}, {"budget": 0})):
        answer = service.post(body, explain=True, **query).json()
        assert answer["contributions"] == {"intercept": base, **BASE}
    shed = open_prediction.OpenPrediction(model).begin(0.0, PredictionOptions(explain=True), overloaded=True)
    assert shed is not None
    assert (shed.contributions, shed.note) == (Contributions(base, {}, {}), open_prediction.OVERLOADED)


@contextmanager
def explaining(max_contributions: int) -> Iterator[Running]:
    """Serve the small model, which has four columns."""
    settings, tuning = Settings(port=0), Tuning(max_contributions=max_contributions)
    with running(create_app(ModelRegistry.of([small_model()]), settings, tuning=tuning), settings) as service:
        yield service


def test_too_many_rows_are_answered_without_contributions_and_the_note_says_why() -> None:
    with explaining(3 * 4) as service:
        rows = {name: [values] * 3 for name, values in VALUES.items()}
        assert service.post({"groups": rows}, explain=True).json()["note"] is None
        rows = {name: [values] * 4 for name, values in VALUES.items()}
        answer = service.post({"groups": rows}, explain=True).json()
        plain = service.post({"groups": rows}).json()
    assert answer["contributions"] is None
    assert answer["note"] == (
        "no contributions: 4 rows x 4 columns x 1 scores are more than 12; explain fewer rows at once"
    )
    assert (answer["prediction"], plain["note"]) == (plain["prediction"], None)


def test_every_answer_without_contributions_has_the_note() -> None:
    note = "no contributions: 4 columns x 1 scores are more than 3"
    with explaining(3) as service, service.stream(JSON) as stream:
        stream.say("begin", 1, explain=True, updates=True)
        stream.groups(1, {"speed": VALUES["speed"]})
        assert stream.hear()["note"] == note
        stream.say("end", 1)
        assert stream.answer(1)["note"] == note


def test_contributions_that_are_no_numbers_are_refused_even_if_the_probability_is_one(settings: Settings) -> None:
    model = small_model("sick", classes=("no", "yes"))
    model.prefixes.packed[:] = 1e300
    manifest = model.manifest.model_copy(update={"family": "binomial", "link": "logit"})
    with run_service([type(model)(manifest, model.prefixes)], settings) as service:
        groups = {"speed": [1e99]}
        assert service.post({"groups": groups}).json()["probabilities"] == [0.0, 1.0]
        refused = service.post({"groups": groups}, explain=True)
        assert (refused.status_code, refused.json()["field"]) == (422, "groups")
