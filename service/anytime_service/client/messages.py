"""Encoding of the values of groups, and decoding of replies; `anytime_service.schemas` has the types of the messages.

The client sends MessagePack: arrays as their bytes, with 4 bytes per number for 32-bit (or smaller) floats and 8 bytes
otherwise, so it neither converts numbers to text nor rounds them. In an array of numbers a category is the index of its
level; in one that an extractor of a run returns, only in a group whose levels are all text. The client sends lists, and
arrays of text or objects, as lists, in which None is a missing value and a category is its level and a date is text in
ISO form. The columns of a frame go by their names, which the client compares with those of the model. It ignores fields
of replies that it does not know, which a newer server may send, and does not validate the values of answers. Any other
content raises ReplyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import date
from typing import Any, TypeAlias, TypeVar, get_origin, get_type_hints

import msgspec
import numpy as np

from anytime.errors import ValuesError, clipped
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer
from anytime.inference.values import labels_of, plain_values
from anytime.model.model import Expected
from anytime_service.client.errors import ProblemError, ReplyError
from anytime_service.schemas.catalogue import ModelColumn
from anytime_service.schemas.messages import Dtype, Values

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Values of a group in MessagePack, a list or the bytes of an array; `dtype` is None for a list."""

    values: msgspec.Raw
    dtype: Dtype | None
    rows: int


Columns: TypeAlias = Mapping[str, Sequence[ModelColumn]]
"""Columns of a model by group."""


def encode_values(
    group: str, values: Any, rows: int | None = None, columns: Columns | None = None, *, coded: bool = True
) -> Encoded:
    """Encode values of a group: (rows, features), or (features,) for one row; `rows` None accepts any number.

    An array of numbers without names has the indices of levels; if it is not `coded`, levels that are not text.

    Raise ValuesError, which names the group, if they are not numbers, not an array or lists, or have a different number
    of rows, and LabelledError without `columns` if they are a frame. The server checks the number of features.
    """
    known = None if columns is None else columns.get(group, ())
    plain = plain_values(group, None if known is None else [column.name for column in known], values, rows)
    kinds = {column.type for column in known or () if column.levels is not None}
    if kinds and isinstance(plain, np.ndarray) and (labels_of(values) is not None or not (coded or kinds == {"text"})):
        plain = plain.tolist()
    is_table = plain.ndim > 1 if isinstance(plain, np.ndarray) else bool(plain) and isinstance(plain[0], list | tuple)
    count = len(plain) if is_table else 1
    if rows not in (None, count):
        raise ValuesError(f"values of group {group!r} have {count} row{'s' * (count != 1)}; expected {rows}")
    if not isinstance(plain, np.ndarray):
        return Encoded(_encoded_list(group, plain), None, count)
    if plain.ndim > 2:
        shape = " x ".join(map(str, plain.shape))
        raise ValuesError(f"values of group {group!r} are {shape}; expected rows x features")
    dtype: Dtype = "f4" if plain.dtype.kind == "f" and plain.dtype.itemsize <= 4 else "f8"
    packed = np.ascontiguousarray(plain, dtype=f"<{dtype}")
    return Encoded(msgspec.Raw(msgspec.msgpack.encode(packed.data)), dtype, count)


def encode_all(
    groups: Mapping[str, Any], rows: int | None = None, columns: Columns | None = None
) -> dict[str, Encoded]:
    """Encode groups with equal numbers of rows, by name; raises like `encode_values`."""
    encoded: dict[str, Encoded] = {}
    for name, values in groups.items():
        encoded[name] = encode_values(name, values, rows, columns)
        rows = encoded[name].rows
    return encoded


def _encoded_list(group: str, values: Sequence[Any]) -> msgspec.Raw:
    try:
        content = msgspec.msgpack.encode(_iso(values))
        _VALUES.decode(content)  # the server would refuse other values too, but would not name the group
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValuesError(
            f"values of group {group!r} are not all numbers or text ({error}); expected these, or None where missing"
        ) from error
    return msgspec.Raw(content)


_VALUES = msgspec.msgpack.Decoder(Values)
_UNDATED = frozenset((float, int, bool, str, type(None)))


def _iso(item: Any) -> Any:
    """Return dates as text, also in lists, and anything else unchanged; MessagePack has its own type for some dates."""
    if isinstance(item, list | tuple):
        return item if set(map(type, item)) <= _UNDATED else [_iso(each) for each in item]
    return item.isoformat() if isinstance(item, date) else item


Reply: TypeAlias = tuple[str, Any, Answer | ProblemError]
"""A message of the server: its type, the id of the prediction or None, and the answer or problem."""


def decode_reply(message: str | bytes) -> Reply | None:
    """Decode a message of the WebSocket, JSON as text or MessagePack as bytes; return None for an unknown type."""
    frame = parsed(message, msgspec.json.decode if isinstance(message, str) else msgspec.msgpack.decode)
    kind = frame.get("type") if isinstance(frame, dict) else None
    if not isinstance(kind, str):
        raise ReplyError(f"the server sent {clipped(repr(message), 200)}; expected an answer, an update or an error")
    if kind not in ("answer", "update", "error"):
        return None
    return kind, frame.get("id"), problem_of(frame.get("problem")) if kind == "error" else answer_of(frame)


def seconds_of(retry_after: str) -> float | None:
    """Return the seconds of a Retry-After header; None if it contains a date or is empty."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10 else None


def parsed(content: Any, parse: Callable[[Any], Parsed]) -> Parsed:
    """Return `parse(content)`; raise ReplyError if the content is invalid."""
    try:
        return parse(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # pydantic and Unicode raise ValueErrors
        sent, reason = clipped(repr(content), 200), " ".join(str(error).split())
        raise ReplyError(f"the server sent {sent}, which is not a valid reply: {reason}") from error


_FIELDS = fields(Answer)
_TUPLES = frozenset(name for name, hint in get_type_hints(Answer).items() if get_origin(hint) is tuple)
_NESTED = {"expected": Expected, "contributions": Contributions}


def answer_of(content: Any) -> Answer:
    if not isinstance(content, Mapping):
        raise ReplyError(f"the server sent {clipped(repr(content), 200)}; expected an answer")
    known = {field.name: content[field.name] for field in _FIELDS if field.name in content}
    try:
        known |= {name: tuple(known[name]) for name in known.keys() & _TUPLES}
        known |= {name: msgspec.convert(known[name], cls) for name, cls in _NESTED.items() if known.get(name)}
        return Answer(**known)
    except (TypeError, msgspec.ValidationError) as error:
        missing = [each.name for each in _FIELDS if each.default is MISSING and each.name not in content]
        what = f"without {missing[0]!r}" if missing else f"with invalid fields ({error})"
        raise ReplyError(f"the server sent an answer {what}; is it an anytime server?") from error


def problem_of(content: Any, status: int = 0, retry_after_s: float | None = None) -> ProblemError:
    """Return the error for problem details, in which every field may be missing (RFC 9457).

    `status`, that of the response, applies if they have none.
    """
    details = content if isinstance(content, Mapping) else {}

    def text(name: str, default: str) -> str:
        return details[name] if isinstance(details.get(name), str) else default

    number = details.get("status")
    return ProblemError(
        number if isinstance(number, int) else status,
        text("title", "a problem without a title"),
        text("detail", "the server refused the request without a reason"),
        text("field", "") or None,
        type=text("type", "about:blank"),
        retry_after_s=retry_after_s,
    )
