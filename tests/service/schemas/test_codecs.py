"""Messages are decoded with errors in plain words, and answers are encoded with the fields that a server sends."""

from __future__ import annotations

import inspect
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.errors import AnytimeError
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer, Prediction
from anytime.model.model import Model
from anytime_service import errors
from anytime_service.core.open_prediction import Limits, OpenPrediction
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.limits.table import INLINE
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, answer_fields, decoders, in_pieces, read
from anytime_service.schemas.options import PredictionOptions
from anytime_service.schemas.problem import KINDS, Problem
from anytime_service.settings import Settings
from lazily import Lazy
from service.serving import VALUES, Running, expected, packed, small_model, timeless, trained_model

FORMS = (JSON, MSGPACK)
NAME = Annotated[str, msgspec.Meta(min_length=1, max_length=3)]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message with every kind of limit."""

    name: NAME = "a"
    groups: Annotated[dict[NAME, list[float]], msgspec.Meta(max_length=2)] = {}
    rows: Annotated[int, msgspec.Meta(ge=1)] = 1


DECODERS = decoders(Message)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("content", "field", "error"),
    [
        ({"groups": {"long": []}}, "groups", "groups: a name has more than 3 characters; send at most 3"),
        ({"groups": {"": []}}, "groups", "groups: a name has fewer than 1 characters; send at least 1"),
        ({"groups": {"a": [], "b": [], "c": []}}, "groups", "groups: it has more than 2 names; send at most 2"),
        ({"name": "long"}, "name", "name: it has more than 3 characters; send at most 3"),
        ({"name": ""}, "name", "name: it has fewer than 1 characters; send at least 1"),
        ({"rows": 0}, "rows", "rows: expected `int` >= 1"),
        ({"rows": "1"}, "rows", "rows: expected `int`, got `str`"),
        ({"groups": {"a": ["x"]}}, "groups[...][0]", "groups[...][0]: expected `float`, got `str`"),
        ({"row": 1}, None, "the body: object contains unknown field `row`"),
        ([], None, "the body: expected `object`, got `array`"),
    ],
)
def test_an_invalid_message_is_named_in_plain_words(form: Form, content: Any, field: str | None, error: str) -> None:
    with pytest.raises(MalformedBodyError) as raised:
        read(form, DECODERS[form.name], form.encode(content))
    assert (str(raised.value), raised.value.field) == (error, field)


def answer(**changes: Any) -> Answer:
    prediction = Prediction(trained_model(), 1)
    for name, values in VALUES.items():
        prediction.add(name, values)
    return replace(prediction.answer(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"prediction": np.inf},
        {"prediction": [1.0, np.nan]},
        {"prediction": np.array([[1.0, -np.inf]])},
        {"prediction": "a", "probabilities": [np.nan, 1.0]},
        {"interval": [0.0, np.inf]},
        {"contributions": Contributions(0.0, {"a": [np.nan]}, {})},
    ],
)
def test_numbers_that_are_not_finite_are_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="too large"):
        answer_fields(JSON, answer(**changes))


@pytest.mark.parametrize(("form", "codec"), [(JSON, msgspec.json), (MSGPACK, msgspec.msgpack)])
def test_contributions_of_one_row_made_by_the_worker_equal_those_made_at_once(form: Form, codec: Any) -> None:
    contributions = []
    for max_inline in (1, 10_000):
        machine = OpenPrediction(small_model(), None, Limits(max_inline=max_inline))
        machine.begin(0.0, PredictionOptions(explain=True))
        machine.groups(1.0, {"speed": [2.0]}, lambda *_: None)
        answer = machine.end(2.0)
        assert answer is not None
        answer = answer.make_arrays() if max_inline == 1 else answer
        contributions.append(codec.decode(form.encode(answer_fields(form, answer)))["contributions"])
    assert contributions[0] == contributions[1]


# Answers of many rows are encoded in pieces, and have the content that they have in one.


SETTINGS = Settings(port=0)
CLASSES = ("car", "cyclist", "walker")
MODELS: Lazy[str, Model] = Lazy(
    {"lens": trained_model, "kind": lambda: small_model("kind", responses=3, classes=CLASSES)}
)


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
@pytest.mark.parametrize("piece", [1, 2, 15, 16, 17, 70_000])
@pytest.mark.parametrize(
    "items",
    [
        [],
        [1.5],
        [0.1 * i for i in range(50)],
        [[0.1 * i, -1.0, 2.0] for i in range(40)],
        ["a,b", "[]", "ü"] * 20,
        [[]] * 33,
        {f"column {i}": [float(i)] * 3 for i in range(40)},
        {f"column {i}": float(i) for i in range(40)},
        list(range(70_001)),
    ],
    ids=lambda items: f"{type(items).__name__} {len(items)}",
)
def test_what_is_encoded_in_pieces_equals_what_is_encoded_at_once(form: Form, piece: int, items: Any) -> None:
    decode = msgspec.json.decode if form is JSON else msgspec.msgpack.decode
    assert decode(form.encode({"found": in_pieces(form, items, piece)})) == {"found": items}
    if isinstance(items, list) and items and isinstance(items[0], float | list) and items[0] != []:
        assert decode(form.encode(in_pieces(form, np.array(items), piece))) == items


def values_of(model: str, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {name: rng.standard_normal((rows, len(place.features))) for name, place in MODELS[model].places.items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", [int(INLINE) // 3, int(INLINE) + 1, 9_000])
def test_an_answer_of_many_rows_is_that_of_the_library_on_every_binding(
    service: Running, model: str, rows: int
) -> None:
    values = values_of(model, rows)
    literal = expected(MODELS[model], values, rows=rows)
    content = msgspec.msgpack.encode({"groups": {name: packed(each) for name, each in values.items()}})
    for media_type, decode in (("application/json", msgspec.json.decode), (MSGPACK.media_type, msgspec.msgpack.decode)):
        headers = {"Content-Type": MSGPACK.media_type, "Accept": media_type}
        answer = httpx.post(f"{service.url}/predict?model={model}", content=content, headers=headers, timeout=60)
        assert timeless(decode(answer.content)) == literal
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            assert timeless(stream.ask(1, model=model, rows=rows, deadline_ms=0)) == expected(
                MODELS[model], {}, rows=rows
            )


def test_updates_of_a_prediction_of_many_rows(service: Running) -> None:
    values = values_of("lens", 5_000)
    with service.stream(MSGPACK) as stream:
        stream.say("begin", 1, model="lens", rows=5_000, updates=True)
        for name, each in values.items():
            stream.say("group", 1, group=name, **packed(each))
        while (answer := stream.hear())["type"] == "update":  # of a part of the groups, made by the worker
            assert len(answer["prediction"]) == 5_000
        assert timeless(answer) == expected(MODELS["lens"], values, rows=5_000)


# Every error of the service is a kind of problem: a slug, a title and a status.


OF_THE_START = (errors.AddressError, errors.CertificateError, errors.KeysError)
"""Errors before the server serves: no client receives them."""


def test_every_error_that_a_client_may_receive_has_a_kind() -> None:
    every = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, AnytimeError)}
    for cls in every - {AnytimeError, errors.SessionError}:
        assert any(base in KINDS for base in cls.__mro__) != (cls in OF_THE_START), cls.__name__


def test_a_slug_has_one_status() -> None:
    statuses: dict[str, set[int]] = {}
    for kind in KINDS.values():
        statuses.setdefault(kind.slug, set()).add(kind.status)
        assert 400 <= HTTPStatus(kind.status) <= 503
    assert {len(each) for each in statuses.values()} == {1}


def test_a_problem_omits_what_is_unknown() -> None:
    problem = Problem("urn:anytime:problem:x", "X", 400, "why")
    assert msgspec.json.decode(msgspec.json.encode(problem)).keys() == {"type", "title", "status", "detail"}
