"""The options of a prediction: what is in a query and what in a body; `api/test_new_option.py` adds one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, get_type_hints

import msgspec
import pytest

from anytime_service.errors import FieldError
from anytime_service.schemas.messages import PredictRequest
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
