"""Messages of the WebSocket: valid ones of both forms are equal, and invalid ones still say whom they concern."""

from __future__ import annotations

from typing import Any

import pytest

from anytime_service.errors import BodyTooLargeError, MalformedBodyError
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.messages import BeginFrame, EndFrame, GroupFrame, ListLimits, Peeked, peek, read_frame

FORMS = (JSON, MSGPACK)
LIMITS = ListLimits(1 << 20, 50_000)


def written(form: Form, message: Any) -> str | bytes:
    content = form.encode(message)
    return content.decode() if form is JSON else content


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("message", "frame"),
    [
        ({"type": "begin", "id": 1, "budget": 2.5, "updates": True}, BeginFrame(id=1, budget=2.5, updates=True)),
        ({"type": "group", "id": "a", "group": "g", "values": [1, None]}, GroupFrame("a", "g", [1, None])),
        (
            {"type": "group", "id": 2, "group": "g:h", "values": [["x:y"], [True]]},
            GroupFrame(2, "g:h", [["x:y"], [True]]),
        ),
        ({"type": "end", "id": 3}, EndFrame(3)),
    ],
)
def test_a_message_has_the_same_fields_in_both_forms(form: Form, message: dict[str, Any], frame: Any) -> None:
    found = read_frame(form, written(form, message), LIMITS)
    assert isinstance(found, type(frame))
    assert {name: getattr(found, name) for name in frame.__struct_fields__} == {
        name: getattr(frame, name) for name in frame.__struct_fields__
    }


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("size", [1, AT_ONCE])
def test_an_error_about_values_names_the_group(form: Form, size: int) -> None:
    content = written(form, {"type": "group", "id": 7, "group": "speed", "values": [1.5] * size + [{}]})
    with pytest.raises(MalformedBodyError, match=r"^group 'speed': values") as raised:
        read_frame(form, content, ListLimits(1 << 20, 1 << 20))
    assert str(raised.value.field).startswith("groups.speed[")
    assert peek(form, content) == Peeked("group", 7, "speed")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("content", ["{", "[]", '{"type": "begin", "id": []}', ""])
def test_what_is_unreadable_concerns_nobody(form: Form, content: str) -> None:
    message = content if form is JSON else content.encode()
    with pytest.raises(MalformedBodyError):
        read_frame(form, message, LIMITS)
    assert peek(form, message) == Peeked()


def test_long_lists_in_messagepack_must_be_packed() -> None:
    message = {"type": "group", "id": 1, "group": "g"}
    limits = ListLimits(1 << 20, 100)
    with pytest.raises(BodyTooLargeError, match="as a list"):
        read_frame(MSGPACK, MSGPACK.encode(message | {"values": [1.5] * 101}), limits)
    packed = MSGPACK.encode(message | {"values": b"\0" * 8 * 1000, "dtype": "f8"})
    assert len(read_frame(MSGPACK, packed, limits).values) == 8000  # type: ignore[union-attr]
