"""Messages are decoded with errors in plain words, and answers are encoded with the fields that a server sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest

from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer, Prediction
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, answer_fields, decoders, read
from service.serving import VALUES, trained_model

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
