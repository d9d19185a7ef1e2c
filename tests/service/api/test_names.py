"""Names with any mark are values of a prediction and inputs of the Open Inference Protocol, each its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from anytime_service.settings import Settings
from models.test_names import GROUPS, frame, model
from service.inferring import assert_reported, infer
from service.serving import expected, run_service, timeless


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
