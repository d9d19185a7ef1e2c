"""Text, booleans, whole numbers and gaps: every binding reads them as the library does, or names the wrong column."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.inference.runner import Runner
from anytime.loaded import LoadedModel
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.client import Client, ProblemError
from anytime_service.models.registry import ModelRegistry, load_registry
from anytime_service.schemas.catalogue import summary
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from service.inferring import JSON_BYTES, assert_refused, half_sent, infer, output, post, tensor
from service.redis_server import RedisServer
from service.serving import PLAIN, Running, columns_model, expected, packed, run_service, running, timeless

SETTINGS = Settings(port=0, max_rows=50, max_body_bytes=100_000, session_store_timeout_ms=5_000)
DATABASE = 6
Groups = dict[str, Any]

CASES: dict[str, Groups] = {
    "every type": {"person": [[30.0, "male"]], "ticket": [[7.5, True, "Århus", 3]], "home": [["Köln"]]},
    "null": {"person": [[None, None]], "ticket": [[None, None, None, None]], "home": [[None]]},
    "unknown level": {"person": [[30.0, "x"]], "ticket": [[7.5, 0, "Bonn", 99]], "home": [["bonn"]], "speed": [[True]]},
    "clamped": {"person": [[1e6, "female"]], "ticket": [[-1.0, 1, "Rome", 17.0]], "home": [["Bonn"]]},
    "rows": {
        "home": [["Bonn"], [None], ["x], [y"]],
        "person": [[0.5, "male"], [20, "female"], [None, "male"]],
        "speed": [[1.0], [None], [3]],
        "ticket": [[1, False, "Oslo", 17], [2.5, None, "Rome", None], [3, True, "Lima", -4]],
    },
}
IMPUTED = {
    "every type": [],
    "null": ["age", "sex", "fare", "paid", "port", "cabin"],
    "unknown level": ["sex", "port", "cabin", "town"],
    "clamped": [],
    "rows": ["age", "paid", "port", "cabin", "v", "town"],
}


def coded(name: str, values: Any) -> Any:
    """Values of a group with the index of the level for each category, as the description of the model lists them."""
    columns = {column.name: column for column in summary(columns_model(), ()).columns}
    found = np.array([[np.nan if each is None else each for each in row] for row in values], dtype=object)
    for j, feature in enumerate(columns_model().places[name].features):
        levels = columns[feature].levels
        if levels:
            unknown = -1.0 if columns[feature].other else np.nan
            codes = {level: float(at) for at, level in enumerate(levels)}
            found[:, j] = [each if each != each else codes.get(each, unknown) for each in found[:, j]]
    return found.astype(np.float64)


@pytest.fixture(scope="module")
def model() -> Model:
    return columns_model()


@pytest.fixture(scope="module")
def replica(shared_redis: RedisServer) -> Iterator[Running]:
    """A service with its sessions in Redis."""
    settings = SETTINGS.model_copy(update={"session_store": shared_redis.url(DATABASE)})
    with run_service([columns_model()], settings) as service:
        yield service


# Doors


@dataclass(frozen=True)
class Door:
    """A way to send groups: `send` returns the answer, or some of its fields, or a problem."""

    name: str
    send: Callable[[Running, Groups], dict[str, Any]]
    has_text: bool = True

    def __str__(self) -> str:
        return self.name


def posted(service: Running, path: str, content: bytes, kind: str) -> dict[str, Any]:
    headers = {"content-type": kind, "accept": JSON.media_type}
    reply: dict[str, Any] = httpx.post(service.url + path, content=content, headers=headers, verify=PLAIN).json()
    return reply


def by_stream(form: Form, prepare: Callable[[str, Any], Any]) -> Callable[[Running, Groups], dict[str, Any]]:
    def send(service: Running, groups: Groups) -> dict[str, Any]:
        with service.stream(form) as stream:
            stream.say("begin", 1)
            for name, values in groups.items():
                stream.groups(1, {name: prepare(name, values)})
                stream.say("end", 2)  # an unknown id: its error comes after all that the group causes
                message = stream.hear()
                if message["id"] == 1:
                    return message.get("problem") or message
            stream.say("end", 1)
            return stream.answer(1)

    return send


def by_post(form: Form, prepare: Callable[[str, Any], Any]) -> Callable[[Running, Groups], dict[str, Any]]:
    def send(service: Running, groups: Groups) -> dict[str, Any]:
        body = {"groups": {name: prepare(name, values) for name, values in groups.items()}}
        return posted(service, "/predict", form.encode(body), form.media_type)

    return send


def by_lines(service: Running, groups: Groups) -> dict[str, Any]:
    lines = [JSON.encode({"group": name, "values": values}) for name, values in groups.items()]
    return posted(service, "/predict", b"\n".join(lines), "application/x-ndjson")


def by_session(form: Form, prepare: Callable[[str, Any], Any]) -> Callable[[Running, Groups], dict[str, Any]]:
    def send(service: Running, groups: Groups) -> dict[str, Any]:
        path = f"/sessions/{service.post_to('/sessions').json()['id']}"
        for name, values in groups.items():
            took = posted(service, f"{path}/groups", form.encode({name: prepare(name, values)}), form.media_type)
            if "status" in took:
                return took
        answer: dict[str, Any] = service.get(f"{path}/predict").json()
        service.delete(path)
        return answer

    return send


def unchanged(_: str, values: Any) -> Any:
    return values


def packed_codes(name: str, values: Any) -> Any:
    return packed(coded(name, values))


def inputs(groups: Groups, names: list[str] | None = None) -> list[dict[str, Any]]:
    """The inputs of groups: the numbers, then each text column."""
    found = []
    for group, values in groups.items():
        features = columns_model().places[group].features
        texts = [feature for feature in features if feature in ("sex", "port", "town")]
        numbers = [
            [each for each, feature in zip(row, features, strict=True) if feature not in texts] for row in values
        ]
        if numbers[0]:
            found.append(tensor(group, numbers))
        for feature in texts:
            column = [[row[features.index(feature)]] for row in values]
            found.append(tensor(f"{group}:{feature}", column, "BYTES"))
    return [each for each in found if names is None or each["name"] in names]


def as_bytes(those: list[dict[str, Any]]) -> tuple[bytes, dict[str, str]]:
    """A body with its tensors after the JSON, and its headers; null text is empty."""
    heads, blobs = [], []
    for each in those:
        if each["datatype"] == "BYTES":
            texts = [(row[0] or "").encode() for row in each["data"]]
            blobs.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        else:
            blobs.append(np.array(each["data"], dtype="<f8").tobytes())
        heads.append(
            {k: v for k, v in each.items() if k != "data"} | {"parameters": {"binary_data_size": len(blobs[-1])}}
        )
    head = json.dumps({"inputs": heads}).encode()
    return head + b"".join(blobs), {JSON_BYTES: str(len(head)), "Content-Type": "application/octet-stream"}


def flat(those: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each | {"data": [value for row in each["data"] for value in row]} for each in those]


def as_json(those: list[dict[str, Any]]) -> tuple[bytes, None]:
    return json.dumps({"inputs": those}).encode(), None


def by_inputs(prepare: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Running, Groups], dict[str, Any]]:
    def send(service: Running, groups: Groups) -> dict[str, Any]:
        content, headers = prepare(inputs(groups))
        return answer_of(post(service, content, headers, "liner").json())

    return send


def answer_of(reply: dict[str, Any]) -> dict[str, Any]:
    """The answer in a reply of the Open Inference Protocol."""
    parameters = reply["parameters"]
    lists = {name: json.loads(parameters[name]) for name in ("groups", "missing", "imputed", "clamped")}
    return lists | {"prefix": parameters["prefix"], "cost": parameters["cost"], "prediction": output(reply)}


def fields_of(answer: Any) -> dict[str, Any]:
    lists = {name: [*getattr(answer, name)] for name in ("groups", "missing", "imputed", "clamped")}
    return lists | {"prefix": answer.prefix, "cost": answer.cost, "prediction": answer.prediction}


def by_client(service: Running, groups: Groups) -> dict[str, Any]:
    with Client(service.url) as client:
        try:
            return fields_of(client.predict(groups))
        except ProblemError as problem:
            return vars(problem)


def by_table(_: Running, groups: Groups) -> dict[str, Any]:
    columns = [feature for name in groups for feature in columns_model().places[name].features]
    rows = [dict(zip(columns, chain.from_iterable(row), strict=True)) for row in zip(*groups.values(), strict=True)]
    return fields_of(LoadedModel.of(columns_model()).answer(rows))


def by_extractors(_: Running, groups: Groups) -> dict[str, Any]:
    """Return why a runner refuses the only group."""
    ((name, values),) = groups.items()
    with Runner(columns_model(), {each: lambda _: values for each in columns_model().places}) as runner:
        runner.run(None, 60_000)
        detail = next(failure.error for failure in runner.failures if failure.group == name)
    return {"detail": detail, "status": 422, "field": f"groups.{name}"}


BINDINGS = [
    Door("WebSocket JSON", by_stream(JSON, unchanged)),
    Door("WebSocket MessagePack", by_stream(MSGPACK, unchanged)),
    Door("WebSocket packed", by_stream(MSGPACK, packed_codes), has_text=False),
    Door("POST JSON", by_post(JSON, unchanged)),
    Door("POST MessagePack", by_post(MSGPACK, unchanged)),
    Door("POST packed", by_post(MSGPACK, packed_codes), has_text=False),
    Door("NDJSON", by_lines),
    Door("session JSON", by_session(JSON, unchanged)),
    Door("session MessagePack", by_session(MSGPACK, unchanged)),
    Door("session packed", by_session(MSGPACK, packed_codes), has_text=False),
]


ANSWERING = [
    *BINDINGS,
    Door("client", by_client),
    Door("table", by_table),
    Door("inputs", by_inputs(as_json)),
    Door("inputs backwards", by_inputs(lambda those: as_json(those[::-1]))),
    Door("flat inputs", by_inputs(lambda those: as_json(flat(those)))),
    Door("inputs as bytes", by_inputs(as_bytes)),
]
REFUSING = [*(each for each in BINDINGS if each.has_text), Door("client", by_client), Door("extractors", by_extractors)]


def assert_answers(found: dict[str, Any], answer: dict[str, Any]) -> None:
    """Some fields are those of the library's answer."""
    found = timeless(found)
    np.testing.assert_allclose(np.ravel(found.pop("prediction")), np.ravel(answer["prediction"]), rtol=1e-12)
    assert found == {name: answer[name] for name in found}
    assert {"groups", "missing", "imputed", "clamped", "prefix", "cost"} <= found.keys()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("door", ANSWERING, ids=str)
def test_every_door_answers_as_the_library(service: Running, replica: Running, door: Door, case: str) -> None:
    answer = expected(columns_model(), CASES[case], rows=None)
    assert set(answer["imputed"]) == set(IMPUTED[case])
    assert answer["clamped"] == (["age"] if case in ("clamped", "rows") else [])
    for each in (service, replica) if door.name.startswith("session") else (service,):
        assert_answers(door.send(each, CASES[case]), answer)


WRONG: list[tuple[str, list[Any], str]] = [
    ("person", [30.0, 1.0], "column 'sex' has 1.0; expected text, or null"),
    ("person", [30.0, True], "column 'sex' has True; expected text, or null"),
    ("person", ["old", "male"], "column 'age' has 'old'; expected a number, or null"),
    ("person", [-1e200, "male"], "infinite or beyond 1e+100 in 'age'; expected numbers, or null"),
    ("ticket", [1.0, "yes", "Rome", 3.0], "column 'paid' has 'yes'; expected true or false, or null"),
    ("ticket", [1.0, 2.0, "Rome", 3.0], "column 'paid' has 2.0; expected true or false, or null"),
    ("ticket", [1.0, True, "Rome", 3.5], "column 'cabin' has 3.5; expected a whole number, or null"),
    ("ticket", [1.0, True, "Rome", "3"], "column 'cabin' has '3'; expected a whole number, or null"),
    ("speed", ["fast"], "column 'v' has 'fast'; expected a number, or null"),
    ("home", ["Bonn", "Bonn"], "are 1 x 2; expected 1 x 1 values (rows x features)"),
]


@pytest.mark.parametrize(("group", "values", "words"), WRONG)
@pytest.mark.parametrize("door", REFUSING, ids=str)
def test_every_door_refuses_in_the_words_of_the_library(
    service: Running, replica: Running, door: Door, group: str, values: list[Any], words: str
) -> None:
    with pytest.raises(ValuesError) as refused:
        Prediction(columns_model()).add(group, [values])
    for each in (service, replica) if door.name.startswith("session") else (service,):
        problem = door.send(each, {group: [values]})
        assert str(refused.value) in problem["detail"]
        assert words in problem["detail"]
        assert (problem["status"], problem["field"].partition("[")[0]) == (422, f"groups.{group}")


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_wrong_values_change_nothing(service: Running, replica: Running, form: Form) -> None:
    right, wrong = {"person": [30.0, "male"]}, {"person": [31.0, 1], "ticket": [1, "yes", "Rome", 3]}
    answer = expected(columns_model(), right)
    with service.stream(form) as stream:
        stream.say("begin", 1)
        stream.groups(1, right)
        stream.groups(1, wrong)
        assert "'sex' has 1" in stream.problem()["detail"]
        assert "'paid' has 'yes'" in stream.problem()["detail"]
        if form is MSGPACK:
            stream.groups(1, {"home": packed([[5.0]])})
            assert "column 'town' has 5; expected the index of a level, 0 to 1, or -1" in stream.problem()["detail"]
        stream.say("end", 1)
        assert timeless(stream.answer(1)) == answer
    for each in (service, replica):
        path = f"/sessions/{each.post_to('/sessions').json()['id']}"
        assert "prefix" in posted(each, f"{path}/groups", form.encode(right), form.media_type)
        # The first of the groups is right: none of them is stored.
        both = {"home": ["Bonn"], "ticket": wrong["ticket"]}
        assert posted(each, f"{path}/groups", form.encode(both), form.media_type)["status"] == 422
        assert timeless(each.get(f"{path}/predict").json()) == answer


# Versions


def test_a_session_stays_with_the_levels_of_its_version(tmp_path: Path, shared_redis: RedisServer) -> None:
    file = tmp_path / "liner.safetensors"
    old, new = columns_model(), columns_model(reverse=True)
    first, second = CASES["every type"], CASES["unknown level"]
    for store in ("memory", shared_redis.url(DATABASE)):
        old_version = old.save(file)
        settings = SETTINGS.model_copy(update={"session_store": store})
        with run_service(load_registry([file]), settings) as service:
            path = f"/sessions/{service.post_to('/sessions').json()['id']}"
            assert service.post_to(f"{path}/groups", {"person": first["person"]}).status_code == 200
            new_version = new.save(file)
            assert service.post_to("/models/liner/reload").status_code == 200
            assert service.post_to(f"{path}/groups", {"ticket": first["ticket"]}).status_code == 200
            kept: Groups = {"person": first["person"], "ticket": first["ticket"]}
            assert timeless(service.get(f"{path}/predict").json()) == expected(old_version, kept)
            assert timeless(service.post({"groups": second}).json()) == expected(new_version, second)
            assert expected(old_version, kept)["prediction"] != expected(new_version, kept)["prediction"]


def test_a_replica_with_another_version_refuses_the_session(shared_redis: RedisServer) -> None:
    settings = SETTINGS.model_copy(update={"session_store": shared_redis.url(DATABASE)})

    def app(model: Model) -> Any:
        return create_app(ModelRegistry.of([model]), settings)

    with (
        running(app(columns_model("c1")), settings) as one,
        running(app(columns_model("c2", reverse=True)), settings) as other,
    ):
        path = f"/sessions/{one.post_to('/sessions').json()['id']}"
        person = {"person": [30.0, "male"]}
        assert one.post_to(f"{path}/groups", person).status_code == 200
        for response in (other.post_to(f"{path}/groups", {"home": ["Bonn"]}), other.get(f"{path}/predict")):
            assert response.status_code == 503, response.text
            assert "began with model 'liner' in version 'c1'" in response.json()["detail"]
        assert timeless(one.get(f"{path}/predict").json()) == expected(columns_model("c1"), person)


# Open Inference Protocol


def test_a_model_lists_a_text_column_as_an_input_and_none_without_numbers(service: Running) -> None:
    described = service.get("/v2/models/liner").json()["inputs"]
    assert [(each["name"], each["datatype"], each["shape"], each["parameters"]["features"]) for each in described] == [
        ("person", "FP64", [-1, 1], '["age"]'),
        ("person:sex", "BYTES", [-1, 1], '["sex"]'),
        ("ticket", "FP64", [-1, 3], '["fare","paid","cabin"]'),
        ("ticket:port", "BYTES", [-1, 1], '["port"]'),
        ("speed", "FP64", [-1, 1], '["v"]'),
        ("home:town", "BYTES", [-1, 1], '["town"]'),
    ]
    assert {each["parameters"]["cost"] for each in described if each["name"].startswith("ticket")} == {2.0}


def test_a_group_is_received_with_the_last_of_its_inputs(service: Running) -> None:
    groups = CASES["every type"]
    for names in (["person", "person:sex", "ticket"], ["person", "person:sex", "ticket:port"]):
        reply = infer(service, inputs(groups, names), "liner")
        assert_answers(answer_of(reply), expected(columns_model(), {"person": groups["person"]}))
        assert "ticket" in json.loads(reply["parameters"]["missing"])


def test_inputs_that_arrive_before_the_deadline_count_group_by_group(service: Running) -> None:
    groups = {name: CASES["every type"][name] for name in ("person", "ticket")}
    content, headers = as_bytes(inputs(groups))
    for left_out, received in ((0, ("person", "ticket")), (1, ("person",)), (10 + 24 + 1, ())):
        sent = len(content) - left_out
        with half_sent(service, content, sent, "liner", "deadline_ms=100", **{JSON_BYTES: headers[JSON_BYTES]}) as half:
            status, _, reply = half.response()
        assert status == 200, reply
        assert_answers(answer_of(reply), expected(columns_model(), {name: groups[name] for name in received}))


def test_an_invalid_text_in_json_names_its_place(service: Running) -> None:
    wrong = tensor("home:town", [["Bonn"], ["Köln"], [{}]], "BYTES")
    assert_refused(post(service, json.dumps({"inputs": [wrong]}).encode(), model="liner"), 400, "inputs[0].data[2][0]")


def test_an_empty_text_in_bytes_is_a_level_where_the_column_has_it() -> None:
    groups = columns_model().groups
    bases = groups.bases | {"town": groups.bases["town"].model_copy(update={"levels": ("", "Köln")})}
    manifest = columns_model().manifest.model_copy(update={"groups": groups.model_copy(update={"bases": bases})})
    model = Model(manifest, columns_model().prefixes, columns_model().moments)
    with run_service([model], SETTINGS) as other:
        content, headers = as_bytes(inputs({"home": [[""]]}))
        reply = post(other, content, headers, "liner", policy="arrived").json()
        assert_answers(answer_of(reply), expected(model, {"home": [""]}, policy="arrived"))
        assert json.loads(reply["parameters"]["imputed"]) == []


SEX = tensor("person:sex", [["male"]], "BYTES")


@pytest.mark.parametrize(
    ("those", "field", "words"),
    [
        (
            [tensor("person:sex", [[1]], "BYTES")],
            "inputs[0].data[0][0]",
            "group 'person': column 'sex' has 1.0; expected text",
        ),
        ([SEX, tensor("person", [["old"]])], "inputs[1].data[0][0]", "column 'age' has 'old'; expected a number"),
        ([tensor("ticket", [[1, 2, 3]])], "inputs[0].data[0][1]", "column 'paid' has 2.0; expected true or false"),
        (
            [tensor("ticket", [1, 0, 3.5], shape=[1, 3])],
            "inputs[0].data[2]",
            "column 'cabin' has 3.5; expected a whole number",
        ),
        (
            [tensor("person:sex", [[1]])],
            "inputs[0].datatype",
            "is 'FP64'; expected BYTES: 'person:sex' is a text column",
        ),
        ([tensor("person", [["1"]], "BYTES")], "inputs[0].datatype", "is 'BYTES'; expected one of FP64"),
        ([SEX, tensor("person", [[1e300]])], "inputs[1].data", "beyond 1e+100 in 'age'"),
        ([tensor("person", [[30, 1]])], "inputs[0].shape", "expected [rows, 1]"),
        ([SEX, SEX], "inputs[1].name", "input 'person:sex' is given more than once"),
        ([tensor("home", [["Bonn"]], "BYTES")], "inputs[0].name", "there is no input 'home'"),
        ([tensor("person:age", [["1"]], "BYTES")], "inputs[0].name", "there is no input 'person:age'"),
        (
            [tensor("home:town", ["a", "b"], "BYTES", shape=[1, 1])],
            "inputs[0].data",
            "are 1 x 2; expected 1 x 1 values",
        ),
        (
            [tensor("home:town", [["a"], []], "BYTES", shape=[2, 1])],
            "inputs[0].data",
            "are ragged: rows are of different lengths",
        ),
    ],
)
def test_an_input_of_another_type_is_422_that_names_its_place(
    service: Running, those: list[dict[str, Any]], field: str, words: str
) -> None:
    assert_refused(post(service, json.dumps({"inputs": those}).encode(), model="liner"), 422, field, words)


@pytest.mark.parametrize(
    ("blob", "field", "words"),
    [
        (b"\x04\0\0\0Bon", "inputs[0].parameters.binary_data_size", "not 1 texts; expected each text after its length"),
        (b"\x04\0\0\0Bonn\0\0\0\0", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\xff\xff\xff\xff", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\0", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\x02\0\0\0\xc3\x28", "inputs[0].data", "text 0 of input 'home:town' is not UTF-8"),
    ],
)
def test_bytes_that_are_no_texts_are_refused(service: Running, blob: bytes, field: str, words: str) -> None:
    parameters = {"binary_data_size": len(blob)}
    head = {"name": "home:town", "shape": [1, 1], "datatype": "BYTES", "parameters": parameters}
    content = json.dumps({"inputs": [head]}).encode()
    headers = {JSON_BYTES: str(len(content)), "Content-Type": "application/octet-stream"}
    assert_refused(post(service, content + blob, headers, "liner"), 422, field, words)


# Metrics and memory


def test_clamped_columns_are_counted_by_group() -> None:
    with run_service([columns_model()], SETTINGS) as fresh:

        def count() -> float:
            return fresh.metric("anytime_clamped_columns_total", group="person", model="liner")

        assert "anytime_clamped_columns_total{" in fresh.scrape().text, "it is 0 before the first"
        fresh.post({"groups": CASES["every type"]})
        assert count() == 0
        for total, door in enumerate(BINDINGS, start=1):
            door.send(fresh, CASES["clamped"])
            assert count() == total
        fresh.post({"groups": {"ticket": CASES["clamped"]["ticket"], "person": [[200.0, "male"], [300.0, "male"]][:1]}})
        assert count() == len(BINDINGS) + 1
        assert 'group="home"' not in "".join(
            line for line in fresh.scrape().text.splitlines() if line.startswith("anytime_clamped")
        ), "no column of it has a range"


def test_values_count_with_the_bytes_of_their_terms(service: Running) -> None:
    """`ticket` has 4 columns and 10 terms."""
    before = service.metric("anytime_held_bytes")
    path = f"/sessions/{service.post_to('/sessions').json()['id']}"
    assert service.post_to(f"{path}/groups", {"ticket": CASES["every type"]["ticket"]}).status_code == 200
    assert service.metric("anytime_held_bytes") == before + 80
    assert service.post_to(f"{path}/groups", {"ticket": CASES["null"]["ticket"]}).status_code == 200
    assert service.metric("anytime_held_bytes") == before + 80
    assert service.delete(path).status_code == 204
    assert service.metric("anytime_held_bytes") == before


def test_values_whose_terms_exceed_the_memory_budget_are_refused() -> None:
    settings = SETTINGS.model_copy(update={"max_held_bytes": 79})
    with run_service([columns_model()], settings) as small:
        ticket = CASES["every type"]["ticket"]
        path = f"/sessions/{small.post_to('/sessions').json()['id']}"
        assert small.post_to(f"{path}/groups", {"ticket": ticket}).status_code == 503
        assert small.post({"groups": {"ticket": ticket}}).status_code == 503
        assert small.post_to(f"{path}/groups", {"person": [30.0, "male"]}).status_code == 200


def test_the_reply_in_messagepack_has_the_clamped_columns(service: Running) -> None:
    body = MSGPACK.encode({"groups": CASES["clamped"]})
    headers = {"content-type": MSGPACK.media_type}
    reply = httpx.post(f"{service.url}/predict", content=body, headers=headers, verify=PLAIN)
    assert msgspec.msgpack.decode(reply.content)["clamped"] == ["age"]
