"""Contributions of one row in an answer that the worker thread makes, which has numbers of numpy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from anytime_service.core.open_prediction import Limits, OpenPrediction
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, answer_fields
from anytime_service.schemas.options import PredictionOptions
from service.serving import small_model


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
