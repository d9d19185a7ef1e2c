"""`POST /predict` in its forms: JSON, MessagePack and packed values in, JSON or MessagePack out."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.problem import MEDIA_TYPE
from service.serving import BASE_RATE, VALUES, Running, expected, logged, timeless

JSON_TYPE, MSGPACK_TYPE = JSON.media_type, MSGPACK.media_type
DTYPE_TWICE = b"\x83\xa5dtype\xa2f8\xa5dtype\xa2f4\xa6values\xc4\x10" + bytes(16)


def post(service: Running, content: bytes, kind: str = MSGPACK_TYPE, accept: str = "", **query: Any) -> httpx.Response:
    headers = {"content-type": kind, "accept": accept}
    return httpx.post(f"{service.url}/predict", content=content, headers=headers, params=query, timeout=30)


def read(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    decoder: Any = msgspec.json if response.headers["content-type"] == JSON_TYPE else msgspec.msgpack
    answer: dict[str, Any] = decoder.decode(response.content)
    return answer


@pytest.mark.parametrize("kind", [MSGPACK_TYPE, "application/x-msgpack", "application/vnd.msgpack; version=5"])
def test_a_body_of_messagepack_is_answered_in_messagepack(service: Running, model: Model, kind: str) -> None:
    response = post(service, MSGPACK.encode({"groups": VALUES}), kind)
    assert response.headers["content-type"] == MSGPACK_TYPE
    assert timeless(read(response)) == expected(model, VALUES)


@pytest.mark.parametrize(
    ("accept", "kind", "answered"),
    [
        ("", JSON_TYPE, JSON_TYPE),
        ("", MSGPACK_TYPE, MSGPACK_TYPE),
        ("*/*", MSGPACK_TYPE, MSGPACK_TYPE),
        (MSGPACK_TYPE, JSON_TYPE, MSGPACK_TYPE),
        (JSON_TYPE, MSGPACK_TYPE, JSON_TYPE),
        ("text/html, Application/MsgPack;q=0.9, */*;q=0.1", JSON_TYPE, MSGPACK_TYPE),
        (f"{JSON_TYPE}, {MSGPACK_TYPE}", MSGPACK_TYPE, JSON_TYPE),
        (MSGPACK_TYPE, "application/x-ndjson", MSGPACK_TYPE),
        ("text/csv", JSON_TYPE, JSON_TYPE),
    ],
)
def test_the_answer_is_in_the_form_that_is_accepted_else_in_that_of_the_body(
    service: Running, accept: str, kind: str, answered: str
) -> None:
    body = MSGPACK.encode({"groups": {}}) if kind == MSGPACK_TYPE else b"" if "nd" in kind else b'{"groups": {}}'
    response = post(service, body, kind, accept)
    assert response.headers["content-type"] == answered
    assert read(response)["prediction"] == BASE_RATE


@pytest.mark.parametrize(
    ("groups", "status", "field", "words"),
    [
        ({"hog": {"dtype": "f8", "values": b"x" * 24}}, 422, "groups.hog", "16 bytes each"),
        ({"hog": {"dtype": "f8", "values": b""}}, 422, "groups.hog", "expected 1 x 2"),
        ({"hog": {"dtype": "f2", "values": b"x" * 4}}, 422, "groups.hog.dtype", "f2"),
        ({"hog": {"dtype": "f8"}}, 422, "groups.hog", "missing required field `values`"),
        ({"hog": {"values": b"x" * 16}}, 422, "groups.hog", "missing required field `dtype`"),
        ({"hog": {"values": b"", "dtype": "f8", "rows": 1}}, 422, "groups.hog", "unknown field"),
        ({"hog": b"x" * 16}, 422, "groups.hog", "got `bytes`"),
        ({"hog": {"dtype": "f8", "values": [1.0, 2.0]}}, 422, "groups.hog.values", "expected `bytes`"),
        ({"hog": [1.0, float("inf")]}, 422, "groups.hog", "infinite"),
        ({"hog": {"dtype": "f8", "values": np.array([-np.inf, 1.0]).tobytes()}}, 422, "groups.hog", "infinite"),
        ({"none": {"dtype": "f8", "values": b"x" * 8}}, 422, "groups.none", "there is no group"),
        ({"hog": {"dtype": "f4", "values": bytes(8 * 51)}}, 422, "rows", "1 to 50"),
        ({1: [1.0]}, 400, "groups", "expected `str`"),
        (b"\x81\xa6groups\x81\xa3hog" + DTYPE_TWICE, 422, "groups.hog", "a key more than once"),
    ],
)
def test_packed_values_that_cannot_be_name_the_place(
    service: Running, groups: Any, status: int, field: str, words: str
) -> None:
    response = post(service, groups if isinstance(groups, bytes) else MSGPACK.encode({"groups": groups}))
    assert (response.status_code, response.json().get("field")) == (status, field), response.text
    assert words in response.json()["detail"]
    assert post(service, MSGPACK.encode({"groups": VALUES})).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x91" * 9_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc0",
        b"\x80\x80",
        b'{"groups": {}}',
        b"\x81\xa6groups\x81\xa3hog\x91\xa1\xff",  # text that is not UTF-8
    ],
)
def test_a_body_that_is_not_messagepack_is_told(service: Running, content: bytes) -> None:
    with logged() as records:
        response = post(service, content, accept=MSGPACK_TYPE)
    assert (response.status_code, response.headers["content-type"]) == (400, MEDIA_TYPE)
    assert not records
