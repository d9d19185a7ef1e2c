"""What comes in and what goes out, as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from anytime.answer import Answer
from anytime_service.errors import FieldError, MalformedBodyError

__all__ = ["PredictRequest", "Values", "decode_request", "encode_answer"]

Number: TypeAlias = float | bool | None
Values: TypeAlias = list[Number | list[Number]]
"""Values of one group: (rows, features) as nested lists, or a flat list for one row; null where one is missing."""

_values = msgspec.json.Decoder(Values)


class PredictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a prediction: the values of the groups at hand, by name.

    `rows` is counted from the values where it is not given.
    """

    # Values are decoded group by group, so that an error names its group.
    groups: dict[str, Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))]]
    rows: int | None = None


_request = msgspec.json.Decoder(PredictRequest)


def decode_request(content: bytes, rows: int | None, max_rows: int) -> tuple[int, dict[str, Values]]:
    """Read the rows and the values of a body; `rows` is what the head of the request said of them.

    Raises
    ------
    MalformedBodyError
        The body is not JSON, or not of this shape; the message names the place.
    FieldError
        Values are not lists of numbers, or `rows` is out of range or not what the head said.
    """
    request: PredictRequest = _decoded(_request, content)
    groups = {name: _group_values(name, raw) for name, raw in request.groups.items()}
    told = request.rows if request.rows is not None else rows
    if rows is not None and told != rows:
        raise FieldError("rows", f"rows is {told} in the body and {rows} in the query; say it once")
    count = _counted(groups) if told is None else told
    if not 1 <= count <= max_rows:
        raise FieldError(
            "rows", f"there are {count} rows; expected 1 to {max_rows}, in several requests if there are more"
        )
    return count, groups


def encode_answer(answer: Answer) -> bytes:
    """Write an answer as JSON.

    Raises
    ------
    FieldError
        The prediction is not finite: values near the limit of a float overflowed. JSON would turn it into null.
    """
    numbers = answer.prediction if answer.probabilities is None else answer.probabilities
    if not np.isfinite(numbers).all():
        raise FieldError("groups", "the values are too large: the prediction is not a finite number")
    return msgspec.json.encode(answer)


def _decoded(decoder: msgspec.json.Decoder[Any], content: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        message, place = _located(error)
        raise MalformedBodyError(f"{place or 'the body'}: {message}", place or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBodyError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise MalformedBodyError(
            "the body is nested too deeply; values are lists of numbers, or lists of such lists"
        ) from error


def _group_values(name: str, raw: msgspec.Raw) -> Values:
    try:
        return _values.decode(raw)
    except msgspec.ValidationError as error:
        message, place = _located(error)
        field = f"groups.{name}{place}"
        raise FieldError(field, f"values of group {name!r}{' at ' if place else ''}{place}: {message}") from error


def _located(error: msgspec.ValidationError) -> tuple[str, str]:
    """Message of a decoder, and the place it names: "Expected `int` - at `$.rows`" is about `rows`."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", str(error), re.DOTALL)
    message, place = (match[1], match[2] or "") if match else (str(error), "")
    return message[:1].lower() + message[1:], place


def _counted(groups: Mapping[str, Values]) -> int:
    """Rows of the first group: how many lists it holds, or one row if it is flat."""
    values = next(iter(groups.values()), None)
    return len(values) if values and isinstance(values[0], list) else 1
