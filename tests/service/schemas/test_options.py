"""The options of a prediction have one home: a field of `PredictionOptions` is an option of every binding."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from anytime_service.errors import FieldError
from anytime_service.schemas.options import (
    DEFAULTS,
    NAMES,
    STREAM_ONLY,
    PredictionOptions,
    PredictOptions,
    completed,
    read_query,
)

A_NEW_FIELD = '''
import importlib.util, sys

SUBCLASS = """
class PredictionOptions(PredictionOptions, frozen=True, kw_only=True):
    shade: Annotated[int | None, msgspec.Meta(description="A new option.")] = None

DEFAULTS = """

spec = importlib.util.find_spec("anytime_service.schemas.options")
options = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
exec(spec.loader.get_source(spec.name).replace("DEFAULTS = ", SUBCLASS, 1), vars(options))

from anytime_service.app import create_app
from anytime_service.client import engine
from anytime_service.http.options import read_head
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.oip import read_infer
from anytime_service.schemas.predict import read_request
from anytime_service.schemas.stream import read_frame
from anytime_service.schemas.values import ListLimits
from anytime_service.settings import Settings

settings = Settings(port=0)
limits = ListLimits(1000, 100)
head = read_head({"query_string": b"shade=3", "headers": []}, settings, options.PARAMETERS)
body = read_request(JSON, b'{"groups": {}, "shade": 3}', limits)
frame = read_frame(JSON, '{"type": "begin", "id": 1, "shade": 3}', limits)
infer = read_infer(b'{"inputs": [], "parameters": {"shade": 3}}', limits)
call = engine.checked_options({"shade": 3})
found = [head.options, options.completed(options.DEFAULTS, body), frame, infer.parameters, call]
assert [each.shade for each in found] == [3] * 5, found
assert isinstance(found[0], options.PredictionOptions)

document = create_app(ModelRegistry({}), settings).openapi()
for path, method in (("/predict", "post"), ("/predict", "get"), ("/v2/models/{name}/infer", "post")):
    parameters = {each["name"]: each for each in document["paths"][path][method]["parameters"]}
    assert parameters["shade"]["description"] == "A new option.", path
for schema in ("BeginFrame", "InferParameters", "PredictRequest_msgspec.Raw_"):
    names = [name for name in document["components"]["schemas"] if name.startswith(schema.partition("_")[0])]
    assert "shade" in document["components"]["schemas"][names[0]]["properties"], schema
'''


def test_a_field_of_a_subclass_is_an_option_of_every_binding() -> None:
    done = subprocess.run([sys.executable, "-c", A_NEW_FIELD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_clients_signature_has_the_options_of_a_call() -> None:
    assert {*get_type_hints(PredictOptions)} == {*NAMES} - {*STREAM_ONLY}


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ({}, {"budget": 2.0}, {"budget": 2.0}),
        ({"budget": 2.0}, {}, {"budget": 2.0}),
        ({"rows": 2}, {"rows": 2, "explain": True}, {"rows": 2, "explain": True}),
        ({"deadline_ms": 5.0}, {"deadline_ms": 9.0}, {"deadline_ms": 5.0}),
        ({"deadline_ms": 9.0}, {"deadline_ms": 5.0, "ranking": True}, {"deadline_ms": 5.0, "ranking": True}),
    ],
)
def test_an_option_is_in_the_head_or_in_the_body(head: Any, body: Any, expected: Any) -> None:
    assert completed(PredictionOptions(**head), PredictionOptions(**body)) == PredictionOptions(**expected)


def test_an_option_that_differs_or_arrives_too_late_is_an_error() -> None:
    with pytest.raises(FieldError, match=r"^budget is 1\.0 in the body and 2\.0 in the query; send it once$"):
        completed(PredictionOptions(budget=2.0), PredictionOptions(budget=1.0))
    with pytest.raises(FieldError, match=r"^model is an option of the query on this route"):
        completed(DEFAULTS, PredictionOptions(model="brake"), ("model",))


def test_separators_alone_are_no_parameters() -> None:
    assert read_query(b"&", ()) == {}
    assert read_query(b"a=1&&b=2", ("a", "b")) == {"a": "1", "b": "2"}
