"""A key given twice is an error in every message; the decoder alone would use the last one."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from anytime_service.errors import MalformedBodyError
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.codecs import read as read_message
from anytime_service.schemas.messages import GROUPS, REQUEST, SESSION, ListLimits, read_body, read_frame
from anytime_service.schemas.oip import read_infer

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
