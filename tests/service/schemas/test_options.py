"""The options of a prediction: what is in a query and what in a body; `api/test_new_option.py` adds one."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from anytime_service.errors import FieldError
from anytime_service.schemas.options import (
    DEFAULTS,
    NAMES,
    STREAM_ONLY,
    PredictionOptions,
    PredictOptions,
    completed,
    read_query,
)


def test_the_clients_signature_has_the_options_of_a_call() -> None:
    assert {*get_type_hints(PredictOptions)} == {*NAMES} - {*STREAM_ONLY}


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ({}, {"budget": 2.0}, {"budget": 2.0}),
        ({"budget": 2.0}, {}, {"budget": 2.0}),
        ({"rows": 2}, {"rows": 2, "explain": True}, {"rows": 2, "explain": True}),
        ({"deadline_ms": 5.0}, {"deadline_ms": 9.0}, {"deadline_ms": 5.0}),
        ({"deadline_ms": 9.0}, {"deadline_ms": 5.0, "ranking": True}, {"deadline_ms": 5.0, "ranking": True}),
    ],
)
def test_an_option_is_in_the_head_or_in_the_body(head: Any, body: Any, expected: Any) -> None:
    assert completed(PredictionOptions(**head), PredictionOptions(**body)) == PredictionOptions(**expected)


def test_an_option_that_differs_or_arrives_too_late_is_an_error() -> None:
    with pytest.raises(FieldError, match=r"^budget is 1\.0 in the body and 2\.0 in the query; send it once$"):
        completed(PredictionOptions(budget=2.0), PredictionOptions(budget=1.0))
    with pytest.raises(FieldError, match=r"^model is an option of the query on this route"):
        completed(DEFAULTS, PredictionOptions(model="brake"), ("model",))


def test_separators_alone_are_no_parameters() -> None:
    assert read_query(b"&", ()) == {}
    assert read_query(b"a=1&&b=2", ("a", "b")) == {"a": "1", "b": "2"}
