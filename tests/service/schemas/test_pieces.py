"""Answers of many rows are encoded in pieces, and have the content that they have in one."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.model.model import Model
from anytime_service.limits.table import INLINE
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, in_pieces
from anytime_service.settings import Settings
from lazily import Lazy
from service.serving import Running, expected, packed, small_model, timeless, trained_model

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
        answer = httpx.post(f"{service.url}/predict?model={model}", content=content, headers=headers, timeout=30)
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
