"""Bodies and values before the prediction checks them: their size, keys that are given twice, and their rows."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pytest

from anytime_service.errors import BodyTooLargeError, FieldError, MalformedBodyError
from anytime_service.limits.table import FIELDS
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, read as read_message
from anytime_service.schemas.messages import (
    GROUPS,
    REQUEST,
    SESSION,
    ListLimits,
    PredictRequest,
    count_rows,
    read_body,
    read_frame,
)
from anytime_service.schemas.oip import read_infer
from anytime_service.schemas.options import (
    NAMES,
    OF_THE_HEAD,
    STREAM_ONLY,
    PredictionOptions,
    PredictOptions,
    combined,
    read_query,
    stated_in,
)

MANY = int(FIELDS) + 1


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(
    ("limits", "content", "error"),
    [
        (ListLimits(10, 5), '{"a":[1,2]}', "the line has 11 bytes of JSON; expected at most 10"),
        (ListLimits(1000, 5), '{"a":[1,2,3,4,5,6]}', "the line has 6 values in lists of JSON; expected at most 5"),
        (ListLimits(10**6, 10**6), "{" + '"":0,' * MANY + "}", f"the line has {MANY} colons in JSON"),
    ],
)
def test_json_that_is_too_large_is_refused_before_it_is_decoded(
    text: bool, limits: ListLimits, content: str, error: str
) -> None:
    with pytest.raises(BodyTooLargeError, match=error):
        limits.must_be_packed(JSON, content if text else content.encode(), "the line")


@pytest.mark.parametrize("values", range(2, 9))
def test_json_at_its_limit_is_accepted(values: int) -> None:
    content = str([0] * values)
    assert ListLimits(len(content), values).must_be_packed(JSON, content) is False
    with pytest.raises(BodyTooLargeError):
        ListLimits(len(content), values - 1).must_be_packed(JSON, content)


@pytest.mark.parametrize(
    ("values", "rows"),
    [([], 1), ([1, 2], 1), ([[1], [2]], 2), (b"12345678", 1), (None, 1), (np.zeros((3, 2)), 3), ("text", 1)],
)
def test_rows_of_values_are_counted_even_if_they_are_invalid(values: Any, rows: int) -> None:
    assert count_rows(values) == rows


# A key given twice is an error in every message; the decoder alone would use the last one.


LIMITS = ListLimits(1 << 20, 50_000)


def body(form: Form, content: bytes, types: Any = REQUEST) -> Any:
    return read_body(form, content, LIMITS, types)


groups = partial(body, types=GROUPS)


def frame(form: Form, content: bytes) -> Any:
    return read_frame(form, content, LIMITS)


def session(form: Form, content: bytes) -> Any:
    return read_message(form, SESSION[form.name], content)


TWICE: dict[str, tuple[Any, str]] = {
    "groups": (body, '{"groups": {"speed": [1]}, "groups": {"speed": [2]}}'),
    "a group": (body, '{"groups": {"speed": [1], "speed": [2]}}'),
    "an escaped group": (body, '{"groups": {"speed": [1], "sp\\u0065ed": [2]}}'),
    "an escaped key": (body, '{"groups": {"speed": [1]}, "gr\\u006fups": {}}'),
    "an option": (body, '{"rows": 1, "groups": {}, "rows": 1}'),
    "an option that is its default": (body, '{"explain": true, "groups": {}, "explain": false}'),
    "a group of a session": (groups, '{"speed": [1], "speed": [2]}'),
    "a session's model": (session, '{"model": "a", "model": "b"}'),
    "a value of a message": (frame, '{"type": "group", "id": 1, "group": "speed", "values": [1], "values": [2]}'),
    "an id": (frame, '{"type": "end", "id": 1, "id": 2}'),
    "a deadline": (frame, '{"type": "begin", "id": 1, "deadline_ms": 5, "deadline_ms": 50}'),
    "a default of a message": (frame, '{"type": "begin", "id": 1, "budget": 5, "budget": null}'),
    "inputs": (lambda _, content: read_infer(content, LIMITS), '{"inputs": [], "inputs": []}'),
    "a parameter": (
        lambda _, content: read_infer(content, LIMITS),
        '{"inputs": [], "parameters": {"budget": 1, "budget": 2}}',
    ),
    "data": (
        lambda _, content: read_infer(content, LIMITS),
        '{"inputs": [{"name": "speed", "shape": [1], "datatype": "FP64", "data": [1], "data": [2]}]}',
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_twice_in_json_is_an_error(name: str) -> None:
    read, content = TWICE[name]
    with pytest.raises(MalformedBodyError, match="is given more than once; send it once"):
        read(JSON, content.encode())


def packed(pairs: list[tuple[str, Any]]) -> bytes:
    items = [
        msgspec.msgpack.encode(key) + (value if isinstance(value, bytes) else msgspec.msgpack.encode(value))
        for key, value in pairs
    ]
    return bytes((0x80 | len(items),)) + b"".join(items)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (body, packed([("groups", packed([("speed", [1.0]), ("speed", [2.0])]))])),
        (body, packed([("groups", {"speed": [1.0]}), ("groups", {"speed": [2.0]})])),
        (groups, packed([("speed", [1.0]), ("speed", [2.0])])),
        (frame, packed([("type", "group"), ("id", 1), ("group", "speed"), ("values", [1.0]), ("values", [2.0])])),
        (frame, packed([("type", "end"), ("id", 1), ("id", 2)])),
        (session, packed([("rows", 1), ("rows", 2)])),
    ],
)
def test_a_key_twice_in_messagepack_is_an_error(read: Any, content: bytes) -> None:
    with pytest.raises(MalformedBodyError, match="given more than once; send it once"):
        read(MSGPACK, content)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (body, '{"groups": {"a:b": [1], "c": ["x:y", "groups"]}, "explain": false, "model": null}'),
        (groups, '{"a": ["\\"a\\": 1"], "groups": [1]}'),
        (frame, '{"type": "group", "id": "a:1", "group": "g", "values": [":", "::"], "took_ms": null}'),
    ],
)
def test_colons_in_text_are_no_keys(read: Any, content: str) -> None:
    read(JSON, content.encode())


# Options of a prediction: what is in a query and what in a body.


def test_the_clients_signature_has_the_options_of_a_call() -> None:
    assert {*get_type_hints(PredictOptions)} == {*NAMES} - {*STREAM_ONLY}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"query": {}, "body": {"budget": 2.0}}, {"budget": 2.0}),
        ({"query": {"budget": 2.0}, "body": {}}, {"budget": 2.0}),
        ({"query": {"rows": 2}, "body": {"rows": 2, "explain": True}}, {"rows": 2, "explain": True}),
        ({"query": {"deadline_ms": 5.0}, "body": {"deadline_ms": 9.0}}, {"deadline_ms": 5.0}),
        ({"query": {"deadline_ms": 9.0}, "body": {"deadline_ms": None}}, {"deadline_ms": 9.0}),
        (
            {"query": {"deadline_ms": 9.0}, "header": {"deadline_ms": 5.0}, "body": {"ranking": True}},
            {"deadline_ms": 5.0, "ranking": True},
        ),
    ],
)
def test_the_parts_of_a_request_state_options_together(parts: Any, expected: Any) -> None:
    assert combined(parts) == expected


@pytest.mark.parametrize(
    ("name", "one", "default"),
    [("model", "brake", None), ("overload", "prior", "refuse"), ("updates", True, False), ("traceparent", "a", None)],
)
def test_a_body_has_only_the_default_of_an_option_that_is_needed_before_it(name: str, one: Any, default: Any) -> None:
    for stated, head in ((one, one), (one, default), (default, one), (default, default)):
        body = msgspec.convert({name: stated, "groups": {}}, PredictRequest[Any])
        refused = pytest.raises(FieldError, match=f"^{name} is an option of")
        with nullcontext() if stated == head == default else refused:
            assert stated_in(body, PredictionOptions(**{name: head}), OF_THE_HEAD) == {name: default}


def test_separators_alone_are_no_parameters() -> None:
    assert read_query(b"&", ()) == {}
    assert read_query(b"a=1&&b=2", ("a", "b")) == {"a": "1", "b": "2"}
