"""An option of a prediction is one field: every binding parses and refuses it, OpenAPI has it, the client passes it."""

from __future__ import annotations

import os
import subprocess
import sys

DECLARED = """
class PredictionOptions(PredictionOptions, frozen=True, kw_only=True):
    max_age: Annotated[Amount | None, _described("Oldest values that count, in milliseconds.")] = None

DEFAULTS = """
"""A field as it would be in the class; here, of a subclass that every module imports instead."""

PROGRAM = """
import importlib.util, json, sys

spec = importlib.util.find_spec("anytime_service.schemas.options")
options = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
source = spec.loader.get_source(spec.name)
exec(source.replace("DEFAULTS = ", sys.argv[1], 1), vars(options))

from anytime.errors import ValuesError
from anytime_service.client import Client
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from service.inferring import post, tensors
from service.serving import VALUES, run_service, small_model

begin, seen = OpenPrediction.begin, []

def recorded(self, now_ms, stated=options.DEFAULTS, **more):
    seen.append(stated.max_age)
    return begin(self, now_ms, stated, **more)

OpenPrediction.begin = recorded

with run_service([small_model()], Settings(port=0)) as service, Client(service.url) as client:
    session = service.post_to("/sessions").json()["id"]

    def by_stream(form, age):
        with service.stream(form) as stream:
            stream.say("begin", 1, max_age=age)
            stream.say("end", 1)
            reply = stream.hear()
            return 200 if reply["type"] == "answer" else reply["problem"]

    def by_http(reply):
        return 200 if reply.is_success else reply.json()

    def by_inference(age, **query):
        body = {"inputs": tensors(VALUES)} | ({} if query else {"parameters": {"max_age": age}})
        return by_http(post(service, json.dumps(body).encode(), **query))

    bindings = {
        "query": lambda age: by_http(service.post({"groups": VALUES}, max_age=age)),
        "body": lambda age: by_http(service.post({"groups": VALUES, "max_age": age})),
        "session": lambda age: by_http(service.get(f"/sessions/{session}/predict", max_age=age)),
        "inference": by_inference,
        "query of an inference": lambda age: by_inference(age, max_age=age),
        "text": lambda age: by_stream(JSON, age),
        "binary": lambda age: by_stream(MSGPACK, age),
    }
    for name, ask in bindings.items():
        assert (ask(3), seen[-1]) == (200, 3.0), name
        count, problem = len(seen), ask(-1)
        field = "parameters.max_age" if name == "inference" else "max_age"
        assert (problem["status"] in (400, 422), problem["field"]) == (True, field), problem
        assert "expected a number, 0 or more" in problem["detail"] or ">= 0" in problem["detail"], problem
        assert set(seen[count:]) <= {None}, name

    calls = {
        "predict": lambda age: client.predict(VALUES, max_age=age),
        "run": lambda age: client.run({name: lambda _, v=v: v for name, v in VALUES.items()}, 0, 20_000, max_age=age),
    }
    with client.session() as waiting:
        calls["session"] = lambda age: waiting.predict(max_age=age)
        for name, call in calls.items():
            call(3)
            assert seen[-1] == 3.0, name
            try:
                call("old")
            except ValuesError as error:
                assert str(error).startswith("max_age is 'old'"), error
            else:
                raise AssertionError(name)

    document = service.get("/openapi.json").json()
for path, method in (("/predict", "post"), ("/predict", "get"), ("/v2/models/{name}/infer", "post")):
    parameters = {each["name"]: each for each in document["paths"][path][method]["parameters"]}
    assert parameters["max_age"]["description"] == "Oldest values that count, in milliseconds.", path
    assert parameters["max_age"]["schema"] == {"type": "number", "minimum": 0, "maximum": sys.float_info.max}, path
for schema in ("BeginFrame", "InferParameters", "PredictRequest"):
    assert "max_age" in document["components"]["schemas"][schema]["properties"], schema
"""


def test_a_field_is_an_option_of_every_binding_of_openapi_and_of_the_client() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, DECLARED], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
