"""Answers as they leave."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from anytime.inference.answer import Answer
from anytime_service.errors import FieldError
from anytime_service.wire.forms import Form

__all__ = ["encode_answer", "encode_reply"]


def encode_answer(form: Form, answer: Answer) -> bytes:
    """Write an answer.

    Raises
    ------
    FieldError
        The prediction or its interval is not finite: absurd coefficients overflowed. JSON would turn it into null.
    """
    _check_finite(answer)
    return form.encode(_fields(answer))


def encode_reply(form: Form, kind: Literal["answer", "update"], name: str | int, answer: Answer) -> bytes:
    """Write an answer as a message with its type and id; raises as `encode_answer`."""
    _check_finite(answer)
    return form.encode({"type": kind, "id": name} | _fields(answer))


def _fields(answer: Answer) -> dict[str, Any]:
    """Fields that leave the server: all but those that only the caller's side can know."""
    fields = vars(answer).copy()
    del fields["unused_groups"]
    return fields


def _check_finite(answer: Answer) -> None:
    numbers: Any = answer.prediction if answer.probabilities is None else answer.probabilities
    finite = math.isfinite(numbers) if isinstance(numbers, float) else np.isfinite(numbers).all()
    if not finite or (answer.interval is not None and not np.isfinite(answer.interval).all()):
        raise FieldError("groups", "the values are too large: the prediction is not a finite number")
