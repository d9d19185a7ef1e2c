"""Every parameter, field and header of a request, every argument of the client and every setting has an effect."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from threading import Event
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest

from anytime.errors import AnytimeError
from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime.model.manifest import Calibration
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.client import AsyncClient, AsyncSession, Client, Session
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.schemas.messages import (
    BeginFrame,
    EndFrame,
    GroupLine,
    PackedGroupFrame,
    PredictRequest,
    SessionRequest,
)
from anytime_service.schemas.oip import (
    InferInput,
    InferInputParameters,
    InferOutput,
    InferOutputParameters,
    InferParameters,
    InferRequest,
)
from anytime_service.schemas.options import PredictOptions, RunOptions, SessionOptions
from anytime_service.settings import Settings, load_settings
from effects.rows import Elsewhere, Row, Seen, Table, cases, check, named
from service.inferring import binary, tensors
from service.serving import (
    PLAIN,
    Running,
    columns_model,
    likelihood_model,
    packed,
    picky_model,
    run_service,
    running,
    trained_model,
)
from waiting import until

ALL = {"speed": [2.0], "hog": [1.0, -1.0], "lab": [0.5]}
LATER = {"speed": [2.0], "lab": [0.5]}
ROWS = {"speed": [[1.0], [9.0]]}
LIMITS = Settings(port=0, max_deadline_ms=60_000, max_lateness_ms=1_000)


def calibrated(model: Model, *thresholds: float) -> Model:
    """The model with these thresholds."""
    sizes, shares = (1.0,) * len(thresholds), None if model.manifest.classes is None else (0.1,) * len(thresholds)
    found = Calibration(
        coverage=0.9, level=0.9, rows=99, data="by hand", thresholds=thresholds, sizes=sizes, reliability=shares
    )
    return replace(model, manifest=model.manifest.model_copy(update={"calibration": found}))


def served() -> list[Model]:
    """Models whose answers have every field."""
    lens = calibrated(trained_model(), 2.0, 1.5, 1.0, 0.5)
    binomial = calibrated(likelihood_model("binomial"), 0.8, 0.7, 0.6, 0.6)
    return [lens, picky_model(), binomial, likelihood_model("multinomial"), columns_model()]


class Desk:
    """A service and a busy one, which admits no prediction, and a connection to each.

    A request is a dict of `query`, `headers`, `json` or `content`, and names in the `path`; `busy` chooses the service.
    """

    def __init__(self, service: Running, busy: Running) -> None:
        self.of = {False: service, True: busy}
        self.sessions = {key: sessions_of(each) for key, each in self.of.items()}
        self.clients = {key: httpx.Client(base_url=each.url, timeout=60, verify=PLAIN) for key, each in self.of.items()}

    def send(self, method: str, path: str, *parts: Any) -> Seen:
        """Send a request that some parts state, and return what the response has."""
        request: dict[str, Any] = {"query": {}, "headers": {}, "json": None, "content": None, "path": {}}
        for part in map(dict, parts):
            for key, value in part.items():
                known = request.get(key)
                request[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
        busy = bool(request.get("busy"))
        sessions = self.sessions[busy]
        names = {"name": "lens", "version": "lens-0", "id": "all", **request["path"]}
        path = path.format(**{key: sessions.get(value, value) for key, value in names.items()})
        query = {key: sessions.get(value, value) for key, value in request["query"].items()}
        body = {"json": request["json"]} if request["content"] is None else {"content": request["content"]}
        before = self.timed()
        reply = self.clients[busy].request(method, path, params=query, headers=request["headers"], **body)
        return {**seen_of(reply), "timed": round(self.timed() - before)}

    def timed(self) -> float:
        return self.of[False].metric("anytime_group_seconds_sum")


def sessions_of(service: Running) -> dict[str, str]:
    """Begin sessions; return their ids by name."""
    found = {}
    for name, groups in {"all": ALL, "later": LATER, "rows": ROWS, "other": {"speed": [7.0]}}.items():
        found[name] = service.post_to("/sessions", {"model": "lens"}).json()["id"]
        service.post_to(f"/sessions/{found[name]}/groups", groups)
    return found


def seen_of(reply: httpx.Response) -> Seen:
    media = reply.headers.get("content-type", "")
    seen: dict[str, Any] = {"code": 0 if reply.is_success else reply.status_code, "media": media, "err": reply.text}
    if "msgpack" in media:
        seen |= msgspec.msgpack.decode(reply.content)
    elif "json" in media:
        found = reply.json()
        seen |= found | found.get("parameters", {}) | {each["name"]: each for each in found.get("outputs", ())}
    return seen


def query(**options: Any) -> dict[str, Any]:
    return {
        "query": {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    }


def body(**options: Any) -> dict[str, Any]:
    return {"json": {"groups": ALL} | options}


def headers(**values: str) -> dict[str, Any]:
    return {"headers": {name.replace("_", "-"): value for name, value in values.items()}}


BUSY = {"busy": True}
SOME = {"json": {"groups": LATER}}
SEVERAL = {"json": {"groups": ROWS}}
REFUSED: dict[str, Row] = {
    name: Row(body(**{name: value}), "code", code=422)
    for name, value in (("model", "lens"), ("overload", "prior"), ("updates", True), ("traceparent", "00"))
}
LENS = query(model="lens")
OPTIONS: dict[str, Row | Elsewhere] = {
    "rows": Row(query(rows=3), "prediction", given={"json": {"groups": {}}}),
    "budget": Row(query(budget=1), "groups"),
    "deadline_ms": Row(query(deadline_ms=0), "reason", shows="deadline"),
    "policy": Row(query(policy="arrived"), "groups", given=SOME),
    "ranking": Row(query(ranking=True), "ranking", given=SEVERAL),
    "overload": Row(query(overload="prior"), "code", given=BUSY),
    "explain": Row(query(explain=True), "contributions", shows="speed"),
    "Request-Timeout-Ms": Row(headers(Request_Timeout_Ms="0"), "reason", shows="deadline"),
    "grpc-timeout": Row(headers(grpc_timeout="0m"), "reason", shows="deadline"),
}


def of_session(place: Callable[[str], dict[str, Any]]) -> dict[str, Row | Elsewhere]:
    """Return rows of the options of a session's answer; `place` is the part of a request that names the session."""
    later = place("later")
    return {name: row for name, row in OPTIONS.items() if name != "rows"} | {
        "policy": Row(query(policy="arrived"), "groups", given=later),
        "ranking": Row(query(ranking=True), "ranking", given=place("rows")),
        "deadline_ms": Row(query(deadline_ms=30), "reason", shows="deadline", given=later),
        "Request-Timeout-Ms": Row(headers(Request_Timeout_Ms="30"), "reason", shows="deadline", given=later),
        "grpc-timeout": Row(headers(grpc_timeout="30m"), "reason", shows="deadline", given=later),
    }


def infers(**parameters: Any) -> dict[str, Any]:
    """Return the parameters of a request of the Open Inference Protocol."""
    return {"json": {"parameters": parameters}}


INFER = {"json": {"inputs": tensors(ALL)}}


def inputs(**changes: Any) -> dict[str, Any]:
    """Return one with these changes of its first input."""
    first, *others = tensors(ALL)
    return {
        "json": {"inputs": [{key: value for key, value in (first | changes).items() if value is not None}, *others]}
    }


def bytes_of(**body: Any) -> dict[str, Any]:
    """Return one whose tensors follow the JSON."""
    content, stated = binary(ALL, **body)
    return {"content": content, "headers": stated}


def output(**options: Any) -> dict[str, Any]:
    return {"json": {"inputs": tensors(ALL), "outputs": [{"name": "prediction", **options}]}}


def lines(*groups: dict[str, Any]) -> dict[str, Any]:
    text = "".join(json.dumps(group) + "\n" for group in groups)
    return {"content": text, "headers": {"Content-Type": "application/x-ndjson"}}


SPEED = {"group": "speed", "values": [2.0]}
OF_INFER = OPTIONS | {
    "rows": Row(query(rows=3), "prediction", given={"json": {"inputs": []}}),
    "policy": Row(query(policy="arrived"), "groups", given={"json": {"inputs": tensors(LATER)}}),
    "ranking": Row(query(ranking=True), "ranking", given={"json": {"inputs": tensors(ROWS)}}),
    "Inference-Header-Content-Length": Row(bytes_of(), "code", {**bytes_of(), "headers": {}}),
}
REQUESTS: dict[str, tuple[Any, dict[str, Row | Elsewhere]]] = {
    "post /predict": (
        body() | LENS,
        {
            "model": Row(query(model="picky"), "model", shows="picky"),
            **OPTIONS,
            "Accept": Row(headers(Accept="application/msgpack"), "media"),
            "Content-Type": Row(
                {"content": msgspec.msgpack.encode({"groups": LATER})} | headers(Content_Type="application/msgpack"),
                "code",
                {"content": msgspec.msgpack.encode({"groups": LATER})},
            ),
        },
    ),
    "get /predict": (
        query(session="all"),
        {"session": Row(query(session="other"), "groups"), **of_session(lambda name: query(session=name))},
    ),
    "get /sessions/{id}/predict": ({}, of_session(lambda name: {"path": {"id": name}})),
    "post /v2/models/{name}/infer": (INFER, OF_INFER),
    "post /v2/models/{name}/versions/{version}/infer": (INFER, OF_INFER),
    "get /models/{name}/plan": (
        {},
        {
            "budget": Row(query(budget=1), "steps"),
            "have": Row(query(have="speed"), "steps"),
            "rows": Row(query(rows=7), "steps"),
        },
    ),
    "get /models/{name}/sample": ({}, {"seed": Row(query(seed=2), "err")}),
    "post /models/{name}/reload": ({}, {"force": Elsewhere("tests/service/api/test_likelihoods.py", "force=true")}),
    "get /models/{name}/shape": (
        query(column="v") | {"path": {"name": "multinomial"}},
        {
            "column": Row(query(column="h0"), "err"),
            "prefix": Row(query(prefix=1), "err"),
            "score": Row(query(score=1), "err"),
        },
    ),
    "get /readyz": ({}, {"sessions": Elsewhere("tests/service/sessions/test_faults.py", 'sessions="required"')}),
}
"""Parameters of the query and of the head, by operation."""

BODIES: dict[str, tuple[str, type[msgspec.Struct], Any, dict[str, Row | Elsewhere]]] = {
    "predict": (
        "post /predict",
        PredictRequest,
        body() | LENS,
        {
            "groups": Row(body(groups={"speed": [3.0]}), "prediction"),
            "rows": Row(body(groups={}, rows=3), "prediction", body(groups={})),
            "budget": Row(body(budget=1), "groups"),
            "deadline_ms": Row(body(deadline_ms=0), "reason", shows="deadline"),
            "policy": Row(body(groups=LATER, policy="arrived"), "groups", body(groups=LATER)),
            "ranking": Row(body(groups=ROWS, ranking=True), "ranking", body(groups=ROWS)),
            "explain": Row(body(explain=True), "contributions", shows="speed"),
            **REFUSED,
        },
    ),
    "line": (
        "post /predict",
        GroupLine,
        lines(SPEED) | query(model="lens", policy="arrived"),
        {
            "group": Row(lines({**SPEED, "group": "lab"}), "groups"),
            "values": Row(lines({**SPEED, "values": [3.0]}), "prediction"),
            "took_ms": Row(lines({**SPEED, "took_ms": 7000}), "timed", shows="7"),
        },
    ),
    "session": (
        "post /sessions",
        SessionRequest,
        {"json": {"model": "lens"}},
        {
            "model": Row({"json": {"model": "picky"}}, "model", shows="picky"),
            "rows": Elsewhere("tests/service/sessions/test_sessions.py", '"rows"'),
        },
    ),
    "infer": (
        "post /v2/models/{name}/infer",
        InferRequest,
        INFER,
        {
            "inputs": Row({"json": {"inputs": tensors(LATER)}}, "groups"),
            "id": Row({"json": {"id": "mine"}}, "id", shows="mine"),
            "model_name": Elsewhere("tests/service/api/test_oip.py", "model_name"),
            "model_version": Elsewhere("tests/service/api/test_oip.py", "model_version"),
            "parameters": Row(infers(budget=1), "groups"),
            "outputs": Row(output(), "outputs"),
        },
    ),
    "parameter": (
        "post /v2/models/{name}/infer",
        InferParameters,
        INFER,
        {
            "rows": Row({"json": {"inputs": [], "parameters": {"rows": 3}}}, "prediction", {"json": {"inputs": []}}),
            "budget": Row(infers(budget=1), "groups"),
            "deadline_ms": Row(infers(deadline_ms=0), "reason", shows="deadline"),
            "timeout": Row(infers(timeout=1), "reason", shows="deadline"),
            "policy": Row(infers(policy="arrived"), "groups", given={"json": {"inputs": tensors(LATER)}}),
            "ranking": Row(infers(ranking=True), "ranking", given={"json": {"inputs": tensors(ROWS)}}),
            "overload": Row(infers(overload="prior"), "code", given=BUSY),
            "explain": Row(infers(explain=True), "contributions", shows="speed"),
            "binary_data_output": Row(infers(binary_data_output=True), "media"),
            "content_type": Elsewhere("tests/service/api/test_oip.py", "content_type"),
            "headers": Elsewhere("tests/service/api/test_oip.py", "headers"),
            "model": Row(infers(model="lens"), "code", code=422),
            "updates": Row(infers(updates=True), "code", code=422),
            "traceparent": Row(infers(traceparent="00"), "code", code=422),
        },
    ),
    "input": (
        "post /v2/models/{name}/infer",
        InferInput,
        INFER,
        {
            "name": Row(inputs(name="lens"), "code", code=422),
            "shape": Row(inputs(shape=[1, 2]), "code", code=422),
            "datatype": Row(inputs(datatype="INT8", data=[2.5]), "code", inputs(data=[2.5]), code=422),
            "parameters": Row(bytes_of(), "code", {**bytes_of(), "headers": {}}),
            "data": Row(inputs(data=[3.0]), "prediction"),
        },
    ),
    "input parameter": (
        "post /v2/models/{name}/infer",
        InferInputParameters,
        INFER,
        {
            "binary_data_size": Row(
                inputs(data=None, parameters={"binary_data_size": 8}), "err", inputs(data=None), code=400
            ),
            "content_type": Elsewhere("tests/service/api/test_oip.py", "content_type"),
            "headers": Elsewhere("tests/service/api/test_oip.py", "headers"),
        },
    ),
    "output": (
        "post /v2/models/{name}/infer",
        InferOutput,
        output(),
        {
            "name": Row(output(name="probabilities"), "code", code=422),
            "parameters": Row(output(parameters={"binary_data": True}), "media"),
        },
    ),
    "output parameter": (
        "post /v2/models/{name}/infer",
        InferOutputParameters,
        output(),
        {
            "binary_data": Row(output(parameters={"binary_data": True}), "media"),
            "content_type": Elsewhere("tests/service/api/test_oip.py", "content_type"),
            "headers": Elsewhere("tests/service/api/test_oip.py", "headers"),
        },
    ),
}
"""Fields of the bodies: the operation, the type, the request of every call, and a row for each field."""

ANSWERS: dict[str, Row | Elsewhere] = {
    "model": Row(query(model="picky"), "model", shows="picky"),
    "version": Row(query(model="picky"), "version", shows="picky-1"),
    "prediction": Row(body(groups=LATER), "prediction"),
    "probabilities": Row(query(model="binomial"), "probabilities"),
    "prefix": Row(query(budget=1), "prefix"),
    "steps": Row(query(model="liner") | {"json": {"groups": {}}}, "steps"),
    "groups": Row(query(budget=1), "groups"),
    "cost": Row(query(budget=1), "cost"),
    "cost_total": Row(body(groups=ROWS), "cost_total", body(groups={"speed": [1.0]}), query(policy="arrived")),
    "budget": Row(query(budget=1), "budget"),
    "complete": Row(body(groups=LATER), "complete"),
    "missing": Row(body(groups=LATER), "missing", shows="hog"),
    "imputed": Row(body(groups={"speed": [None]}), "imputed", given=query(policy="arrived"), shows="v"),
    "clamped": Row(
        body(groups={"person": [900.0, "male"]}),
        "clamped",
        body(groups={"person": [40.0, "male"]}),
        query(model="liner"),
        "age",
    ),
    "reason": Row(query(deadline_ms=0), "reason", shows="deadline"),
    "policy": Row(query(policy="best"), "policy", shows="best", given=query(model="picky")),
    "expected": Row(query(budget=1), "expected"),
    "interval": Row(query(model="picky"), "interval", shows="None"),
    "prediction_set": Row(query(model="binomial"), "prediction_set"),
    "elapsed_ms": Elsewhere("tests/service/core/test_open_prediction.py", "elapsed_ms"),
    "late_groups": Elsewhere("tests/service/core/test_open_prediction.py", "late_groups"),
    "replaced": Elsewhere("tests/service/core/test_open_prediction.py", "replaced"),
    "ranking": Row(query(ranking=True), "ranking", given=SEVERAL),
    "note": Row(query(policy="arrived"), "note", given=query(model="multinomial") | SOME),
    "approximate": Row(query(policy="arrived"), "approximate", given=query(model="binomial") | SOME),
    "contributions": Row(query(explain=True), "contributions", shows="speed"),
}
"""Fields of an answer, by requests to `POST /predict`."""


def begin(**options: Any) -> dict[str, Any]:
    return {"begin": options}


def group(**changes: Any) -> dict[str, Any]:
    return {"group": changes}


FLOATS = packed([2.0], "f4")["values"]
FRAMES: dict[str, dict[str, Row | Elsewhere]] = {
    "begin": {
        "id": Row(begin(id="mine"), "id", shows="mine"),
        "model": Row(begin(model="picky"), "model", shows="picky"),
        "rows": Row(begin(rows=3), "prediction", given={"groups": {}}),
        "budget": Row(begin(budget=1), "groups"),
        "deadline_ms": Row(begin(deadline_ms=0), "reason", shows="deadline"),
        "policy": Row(begin(policy="arrived"), "groups", given={"groups": LATER}),
        "ranking": Row(begin(ranking=True), "ranking", given={"groups": ROWS}),
        "overload": Row(begin(overload="prior"), "code", given=BUSY),
        "explain": Row(begin(explain=True), "contributions", shows="speed"),
        "updates": Row(
            begin(updates=True),
            "messages",
            given=begin(deadline_ms=1_500) | {"end": False, "groups": LATER},
            shows="update",
        ),
        "traceparent": Elsewhere("tests/service/telemetry/test_tracing.py", "traceparent"),
    },
    "group": {
        "id": Row(group(id=9), "groups"),
        "group": Row(group(group="lab"), "groups", given=begin(policy="arrived") | {"groups": {"speed": [2.0]}}),
        "values": Row(group(values=[3.0]), "prediction", given=begin(policy="arrived") | {"groups": {"speed": [2.0]}}),
        "took_ms": Row(group(took_ms=7000), "timed", shows="7", given={"groups": {"speed": [2.0]}}),
        "dtype": Row(group(dtype="f4"), "code", group(dtype="f8"), given={"groups": {"speed": FLOATS}}),
    },
    "end": {"id": Row({"end": 9}, "reason", given=begin(deadline_ms=1_500) | {"groups": LATER}, shows="deadline")},
}
TYPES: dict[str, type[msgspec.Struct]] = {"begin": BeginFrame, "group": PackedGroupFrame, "end": EndFrame}


def streamed(desk: Desk, *parts: Any) -> Seen:
    """Send the messages of one prediction; return the answer, or the first error, and the types of all messages."""
    stated: dict[str, Any] = {
        "begin": {"id": 1, "model": "lens", "deadline_ms": 2_000},
        "group": {},
        "groups": ALL,
        "end": True,
    }
    for part in map(dict, parts):
        stated |= {key: {**stated[key], **value} if key in ("begin", "group") else value for key, value in part.items()}
    name, before, messages = stated["begin"]["id"], desk.timed(), list[dict[str, Any]]()
    with desk.of[bool(stated.get("busy"))].stream(MSGPACK) as stream:
        stream.say("begin", **{"name": name} | {k: v for k, v in stated["begin"].items() if k != "id"})
        for key, values in stated["groups"].items():
            fields = {"group": key, "values": values} | stated["group"]
            stream.say("group", fields.pop("id", name), **fields)
        if stated["end"]:
            stream.say("end", name if stated["end"] is True else stated["end"])
        while not messages or messages[-1]["type"] == "update" or messages[-1]["id"] == 9:
            messages.append(stream.hear(60))
    last = messages[-1]
    code = last["problem"]["status"] if last["type"] == "error" else 0
    kinds = [each["type"] for each in messages]
    return {"err": str(last), **last, "code": code, "messages": kinds, "timed": round(desk.timed() - before)}


def client_of(desk: Desk, *, busy: bool = False, **options: Any) -> Client:
    return Client(**{"url": desk.of[busy].url} | options)


CHOSEN: dict[str, Row | Elsewhere] = {
    "model": Row({"model": "picky"}, "model", shows="picky"),
    "rows": Row({"rows": 3}, "prediction", given={"groups": {}}),
    "budget": Row({"budget": 1.0}, "groups"),
    "deadline_ms": Row({"deadline_ms": 0.0}, "groups"),
    "policy": Row({"policy": "arrived"}, "groups", given={"groups": LATER}),
    "ranking": Row({"ranking": True}, "ranking", given={"groups": ROWS}),
    "overload": Row({"overload": "prior"}, "code", given={"busy": True}),
    "explain": Row({"explain": True}, "contributions", shows="speed"),
}


def extracting(groups: Any) -> dict[str, Callable[[Any], Any]]:
    def of(name: str) -> Callable[[Any], Any]:
        return lambda x: groups[name] if x is None else x[name]

    return {name: of(name) for name in ALL}


def predicted(desk: Desk, *, groups: Any = ALL, busy: bool = False, **options: Any) -> Any:
    with client_of(desk, busy=busy) as client:
        return client.predict(groups, **{"model": "lens"} | options)


def constructed(desk: Desk, *, model: str | None = "lens", **options: Any) -> Any:
    """Return the answer of a second run, while an extractor of the first one is still running."""
    released, calls = Event(), list[None]()
    if options.pop("transport", False):
        options |= {
            "url": "http://localhost",
            "transport": create_app(ModelRegistry.of([trained_model("alone")]), LIMITS),
        }

    def first(values: Any) -> Any:
        calls.append(values)
        if len(calls) == 1:
            released.wait(60)
        return values

    extractors = {name: lambda _, name=name: first(ALL[name]) for name in ALL}
    with client_of(desk, **options) as client:
        # On a busy machine, the deadline of a run may expire before its first call begins.
        until(lambda: client.run(extractors, None, 30, model=model) and calls, "the first call begins")
        answer = client.run(extractors, None, 2_000 if "max_workers" in options else 20_000, model=model)
        released.set()
        return answer


def ran(
    desk: Desk,
    *,
    groups: Any = ALL,
    x: Any = None,
    deadline_ms: float = 20_000,
    busy: bool = False,
    extractors: Any = None,
    **options: Any,
) -> Any:
    with client_of(desk, busy=busy) as client:
        return client.run(extractors or extracting(groups), x, deadline_ms, **{"model": "lens"} | options)


def in_session(
    desk: Desk, *, model: str = "lens", rows: int | None = None, groups: Any = ALL, busy: bool = False, **options: Any
) -> Any:
    with client_of(desk, busy=busy) as client, client.session(model, rows) as session:
        if groups:
            session.add_many(groups)
        return session.predict(**options)


def added(desk: Desk, group: str, values: Any) -> Any:
    with client_of(desk) as client, client.session("lens") as session:
        session.add(group, values)
        return session.predict(policy="arrived")


def warmed(desk: Desk, extractors: Any, model: str | None = "lens", worker: Any = "thread") -> Any:
    with client_of(desk) as client:
        client.warm_up(extractors, model=model, worker=worker)
        return {"value": worker}


def planned(desk: Desk, **options: Any) -> Any:
    with client_of(desk) as client:
        return {"value": str(client.plan(**{"model": "lens"} | options))}


def described(desk: Desk, name: str) -> Any:
    with client_of(desk) as client:
        return {"value": str(client.model(name))}


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], dict[str, Row | Elsewhere]]] = {
    "Client": (
        Client,
        constructed,
        {},
        {
            "url": Row({"url": "http://127.0.0.1:1"}, "code", code=2),
            "api_key": Elsewhere("tests/service/http/test_auth_client.py", "api_key"),
            "timeout_s": Elsewhere("tests/service/client/test_network.py", "timeout_s=2.0"),
            "max_workers": Row({"max_workers": 1}, "groups"),
            "ssl": Elsewhere("tests/service/server/test_tls.py", "ssl="),
            "transport": Row({"transport": True}, "model", given={"model": None}, shows="alone"),
        },
    ),
    "Client.predict": (
        Client.predict,
        predicted,
        {},
        {"groups": Row({"groups": {"speed": [3.0]}}, "prediction"), **CHOSEN},
    ),
    "Client.run": (
        Client.run,
        ran,
        {},
        {
            "extractors": Row({"extractors": extracting({**ALL, "speed": [3.0]})}, "prediction"),
            "x": Row({"x": {**ALL, "speed": [3.0]}}, "prediction"),
            "worker": Elsewhere("tests/service/client/test_client.py", 'worker="process"'),
            **CHOSEN,
            "rows": Row(
                {"rows": 2},
                "prediction",
                given={"groups": {"speed": [[1.0], [2.0]], "hog": [[1.0, 2.0]] * 2, "lab": [[1.0]] * 2}},
            ),
            "ranking": Row(
                {"ranking": True},
                "ranking",
                given={"rows": 2, "groups": {"speed": [[1.0], [2.0]], "hog": [[1.0, 2.0]] * 2, "lab": [[1.0]] * 2}},
            ),
            "overload": Row({"overload": "prior"}, "note", given={"busy": True}),
            "policy": Row({"policy": "best"}, "groups", given={"model": "picky", "budget": 5.0}),
        },
    ),
    "Client.session": (
        Client.session,
        in_session,
        {},
        {
            "model": Row({"model": "picky"}, "model", shows="picky"),
            "rows": Row({"rows": 3}, "prediction", given={"groups": {}}),
        },
    ),
    "Session.predict": (
        Session.predict,
        in_session,
        {},
        {name: row for name, row in CHOSEN.items() if name in get_type_hints(SessionOptions)}
        | {"deadline_ms": Row({"deadline_ms": 30.0}, "reason", given={"groups": LATER}, shows="deadline")},
    ),
    "Session.add": (
        Session.add,
        added,
        {"group": "speed", "values": [0.5]},
        {"group": Row({"group": "lab"}, "groups"), "values": Row({"values": [3.0]}, "prediction")},
    ),
    "Session.add_many": (Session.add_many, in_session, {}, {"groups": Row({"groups": {"speed": [3.0]}}, "prediction")}),
    "Client.plan": (
        Client.plan,
        planned,
        {},
        {
            "model": Row({"model": "liner"}, "value"),
            "budget": Row({"budget": 1.0}, "value"),
            "have": Row({"have": ["speed"]}, "value"),
            "rows": Row({"rows": 7}, "value"),
        },
    ),
    "Client.model": (Client.model, described, {"name": "lens"}, {"name": Row({"name": "picky"}, "value")}),
    "Client.warm_up": (
        Client.warm_up,
        warmed,
        {"extractors": extracting(ALL)},
        {
            "extractors": Row({"extractors": {}}, "code", code=2),
            "model": Row({"model": "nothing"}, "code", code=2),
            "worker": Elsewhere("tests/service/client/test_client.py", "warm_up"),
            "example": Elsewhere("tests/service/client/test_client.py", "example="),
        },
    ),
}
OPTIONS_OF = {"Client.predict": PredictOptions, "Client.run": RunOptions, "Session.predict": SessionOptions}

SHOWN = {
    "api/test_long_values.py": ("max_json_bytes",),
    "api/test_openapi.py": ("root_path",),
    "api/test_websocket.py": ("max_deadline_ms", "max_open", "max_solve_ms"),
    "http/test_origins.py": ("allowed_origins",),
    "limits/test_memory.py": ("max_body_bytes", "max_held_bytes", "max_rows"),
    "server/test_bind.py": ("host", "insecure", "metrics_host", "port", "session_store", "uds"),
    "server/test_connections.py": (
        *("body_timeout_s", "header_timeout_s", "idle_timeout_s", "max_connections", "max_header_bytes"),
        "max_message_rate",
    ),
    "server/test_metrics_port.py": ("metrics_port",),
    "server/test_reload_keys.py": ("api_keys", "api_keys_file"),
    "server/test_run.py": ("models",),
    "server/test_tls.py": ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password"),
    "server/test_upgrades.py": ("max_lateness_ms",),
    "sessions/test_faults.py": ("session_store_timeout_ms",),
    "sessions/test_sessions.py": ("max_sessions", "session_ttl_s"),
    "telemetry/test_logs.py": ("access_log", "log_format", "log_level"),
}
"""Settings by the test file, below tests/service, that shows their effect."""
SETTINGS: dict[str, Row | Elsewhere] = {
    **{name: Elsewhere(f"tests/service/{file}", name) for file, names in SHOWN.items() for name in names},
    "max_json_values": Row({"max_json_values": 2}, "code", code=413),
    "max_share_per_key": Row({"max_share_per_key": 0.25}, "code", code=503),
}


def limited(**settings: Any) -> Seen:
    """Return the last response to two sessions of one of two keys, and to groups in one of them."""
    own = load_settings(port=0, max_sessions=4, api_keys="a-key-of-16-letters,another-of-16-letters", **settings)
    with run_service([trained_model()], own) as service:
        key = {"Authorization": "Bearer a-key-of-16-letters"}
        for _ in range(2):
            reply = service.post_to("/sessions", headers=key)
            if not reply.is_success:
                return seen_of(reply)
        return seen_of(service.post_to(f"/sessions/{reply.json()['id']}/groups", ALL, headers=key))


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with ExitStack() as stack:
        service = stack.enter_context(run_service(served(), LIMITS))
        app = create_app(ModelRegistry.of(served()), LIMITS)
        app.state.service.admission.admits = lambda _: False
        desk = Desk(service, stack.enter_context(running(app, LIMITS)))
        yield desk
        for client in desk.clients.values():
            client.close()


def last(tables: Mapping[str, tuple[Any, ...]]) -> dict[str, Table]:
    """Return the tables of rows, which are the last of each."""
    return {name: parts[-1] for name, parts in tables.items()}


def test_every_parameter_of_the_head_has_a_row() -> None:
    known = {
        f"{method} {path}": {each["name"] for each in operation.get("parameters", ()) if each["in"] != "path"}
        for path, operations in create_app(ModelRegistry.of([trained_model()]), LIMITS).openapi()["paths"].items()
        for method, operation in operations.items()
    }
    rows = {name: {*each} - {"Accept", "Content-Type"} for name, (_, each) in REQUESTS.items()}
    assert rows == {name: parameters for name, parameters in known.items() if parameters}


def test_every_field_has_a_row() -> None:
    for _, kind, _, rows in BODIES.values():
        assert set(rows) == set(kind.__struct_fields__)
    assert {name: set(rows) for name, rows in FRAMES.items()} == {n: {*t.__struct_fields__} for n, t in TYPES.items()}
    assert set(ANSWERS) == {field.name for field in fields(Answer)} - {*LOCAL_FIELDS}
    assert set(SETTINGS) == set(Settings.model_fields)


def test_every_argument_of_the_client_has_a_row() -> None:
    for name, (owner, _, _, rows) in CALLS.items():
        own = {*inspect.signature(owner).parameters} - {"self", "options"}
        assert set(rows) == own.union(get_type_hints(OPTIONS_OF[name]) if name in OPTIONS_OF else ()), name
    for kind, other in ((Client, AsyncClient), (Session, AsyncSession)):
        for name in ("predict", "run", "plan", "model", "session", "warm_up", "add", "add_many"):
            assert hasattr(kind, name) == hasattr(other, name)
            if inspect.isfunction(getattr(kind, name, None)):
                signatures = [inspect.signature(getattr(each, name)).parameters.keys() for each in (kind, other)]
                assert signatures[0] == signatures[1]


@pytest.mark.parametrize(("operation", "name", "row"), cases(last(REQUESTS)))
def test_every_parameter_of_the_head_has_an_effect(operation: str, name: str, row: Row | Elsewhere, desk: Desk) -> None:
    method, path = operation.split()
    check(row, lambda *more: desk.send(method, path, REQUESTS[operation][0], *more))


@pytest.mark.parametrize(("kind", "name", "row"), cases(last(BODIES)))
def test_every_field_of_a_body_has_an_effect(kind: str, name: str, row: Row | Elsewhere, desk: Desk) -> None:
    operation, _, base, _ = BODIES[kind]
    check(row, lambda *more: desk.send(*operation.split(), base, *more))


@pytest.mark.parametrize(("kind", "field", "row"), cases({"answer": ANSWERS}))
def test_every_field_of_an_answer_depends_on_a_request(kind: str, field: str, row: Row | Elsewhere, desk: Desk) -> None:
    check(row, lambda *more: desk.send("post", "/predict", body() | LENS, *more))


@pytest.mark.parametrize(("kind", "name", "row"), cases(FRAMES))
def test_every_field_of_a_message_has_an_effect(kind: str, name: str, row: Row | Elsewhere, desk: Desk) -> None:
    check(row, lambda *more: streamed(desk, *more))


@pytest.mark.parametrize(("method", "name", "row"), cases(last(CALLS)))
def test_every_argument_of_the_client_has_an_effect(method: str, name: str, row: Row | Elsewhere, desk: Desk) -> None:
    _, call, base, _ = CALLS[method]

    def called(*more: Any) -> Seen:
        try:
            result = call(desk, **base | dict(more[0]) | dict(more[1]))
        except AnytimeError as error:
            return {"code": 2, "err": str(error)}
        return {"code": 0, **(asdict(result) if isinstance(result, Answer) else result)}

    check(row, called)


@pytest.mark.parametrize(("kind", "name", "row"), cases({"setting": SETTINGS}))
def test_every_setting_has_an_effect(kind: str, name: str, row: Row | Elsewhere) -> None:
    check(row, lambda *more: limited(**dict(more[0]) | dict(more[1])))


def test_every_name_in_the_guides_tables_has_a_row() -> None:
    assert named("service/PROTOCOL.md", "`begin`") <= set(FRAMES["begin"])
    assert named("service/PROTOCOL.md", "`group`") <= set(FRAMES["group"])
    assert named("service/README.md", "option") <= set(OPTIONS) | {"model"}
    assert named("service/README.md", "field") <= set(ANSWERS)
    assert named("deploy/SETTINGS.md", "variable") == {f"ANYTIME_{name.upper()}" for name in SETTINGS}
