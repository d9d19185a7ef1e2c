"""Messages of the client: encoding of requests and decoding of replies.

The client sends begin, group and end frames in MessagePack. It sends arrays as their bytes, with 4 bytes per number for
32-bit (or smaller) floats and 8 bytes otherwise, so it neither converts numbers to text nor rounds them. It sends lists
as lists, in which None is a missing value.

The client receives answers, updates and problems, in frames and in response bodies. A newer server may send fields that
this client does not know: the client ignores these fields and does not validate values. Any other content raises
ReplyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from anytime.errors import ValuesError, summary
from anytime.inference.prediction import Answer
from anytime.model.model import Expected
from anytime_service.client.errors import ProblemError, ReplyError

__all__ = [
    "Begin",
    "Encoded",
    "End",
    "Group",
    "Reply",
    "answer_of",
    "decode",
    "decode_reply",
    "encode_all",
    "encode_frame",
    "encode_groups",
    "encode_values",
    "problem_of",
    "seconds_of",
    "shortened",
]


class Begin(msgspec.Struct, tag_field="type", tag="begin", omit_defaults=True, frozen=True):
    """The frame that opens a prediction."""

    id: int
    model: str | None = None
    rows: int | None = None
    budget: float | None = None
    deadline_ms: float | None = None
    policy: str | None = None
    updates: bool = False
    ranking: bool = False
    overload: str | None = None


class Group(msgspec.Struct, tag_field="type", tag="group", omit_defaults=True, frozen=True):
    """The frame with the values of one group; the values are bytes if `dtype` is set."""

    id: int
    group: str
    values: msgspec.Raw
    dtype: str | None = None
    took_ms: float | None = None


class End(msgspec.Struct, tag_field="type", tag="end", frozen=True):
    """The frame that ends the groups of a prediction and requests its answer."""

    id: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded values of a group, usable in any number of frames.

    Attributes
    ----------
    values : MessagePack, a list or the bytes of an array.
    dtype : "f4" or "f8" for bytes; None for a list.
    rows : number of rows.
    """

    values: msgspec.Raw
    dtype: str | None
    rows: int


def encode_values(group: str, values: Any, rows: int | None = None) -> Encoded:
    """Encode the values of a group, from an extractor or a caller.

    Parameters
    ----------
    group : name of the group, for error messages.
    values : (rows, features), or (features,) for one row: an array, an object that numpy converts to one, or lists.
    rows : expected number of rows; None accepts any number.

    Raises
    ------
    ValuesError
        The values are not numbers, not an array, or have a different number of rows. The server checks the number of
        features.
    """
    if isinstance(values, list | tuple):
        return _encoded_list(group, values, rows)
    try:
        array = np.asarray(values)
    except Exception as error:  # the conversion of a foreign object to an array may raise anything
        raise ValuesError(
            f"converting the values of group {group!r} to an array failed ({summary(error)}); expected rows x features"
        ) from error
    if array.dtype == object and array.ndim:  # None among numbers
        return _encoded_list(group, array.tolist(), rows)
    if array.dtype.kind not in "biuf":
        raise ValuesError(f"values of group {group!r} are not numbers; expected an array (rows, features), or lists")
    shape = " x ".join(map(str, array.shape)) or "a single value"
    count = array.shape[0] if array.ndim == 2 else 1
    if array.ndim not in (1, 2) or rows not in (None, count):
        expected = f"{rows} rows" if rows is not None else "rows"
        raise ValuesError(f"values of group {group!r} are {shape}; expected {expected} x features")
    dtype = "f4" if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else "f8"
    packed = np.ascontiguousarray(array, dtype=f"<{dtype}")
    return Encoded(msgspec.Raw(msgspec.msgpack.encode(packed.data)), dtype, count)


def encode_all(groups: Mapping[str, Any], rows: int | None = None) -> dict[str, Encoded]:
    """Encode groups with equal numbers of rows, by name; raises like `encode_values`."""
    encoded: dict[str, Encoded] = {}
    for name, values in groups.items():
        encoded[name] = encode_values(name, values, rows)
        rows = encoded[name].rows
    return encoded


def encode_frame(frame: Begin | Group | End) -> bytes:
    """Encode a frame in MessagePack."""
    return msgspec.msgpack.encode(frame)


def encode_groups(groups: Mapping[str, Encoded]) -> bytes:
    """Encode groups as the body of a session request, in MessagePack."""
    packed = {name: {"dtype": each.dtype, "values": each.values} for name, each in groups.items() if each.dtype}
    return msgspec.msgpack.encode({name: packed.get(name, each.values) for name, each in groups.items()})


def _encoded_list(group: str, values: Sequence[Any], rows: int | None) -> Encoded:
    nested = bool(values) and isinstance(values[0], list | tuple | np.ndarray)
    count = len(values) if nested else 1
    if rows is not None and count != rows:
        raise ValuesError(f"values of group {group!r} have {count} rows; expected {rows}")
    try:
        content = msgspec.msgpack.encode(values, enc_hook=_plain)
        _NUMBERS.decode(content)  # the server would refuse other values too, but would not name the group
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValuesError(
            f"values of group {group!r} are not all numbers ({error}); expected numbers, or None for missing values"
        ) from error
    return Encoded(msgspec.Raw(content), None, count)


_Number: TypeAlias = float | bool | None
_NUMBERS = msgspec.msgpack.Decoder(list[_Number | list[_Number]])


def _plain(item: Any) -> Any:
    """Convert numpy numbers and rows to Python objects."""
    if isinstance(item, np.ndarray | np.generic):
        return item.tolist()
    raise TypeError(f"{type(item).__name__} is not a number")


_SHOWN = 200
"""Number of characters of an invalid reply that an error message shows."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame from the server for the prediction `id`; `id` is None for a frame without a prediction.

    `content` is an answer or a problem; `final` is False for an update.
    """

    id: Any
    content: Answer | ProblemError
    final: bool = True


def decode_reply(message: str | bytes) -> Reply | None:
    """Decode a frame; return None for an unknown type.

    Raises
    ------
    ReplyError
        The message is not a frame of this protocol.
    """
    frame = decode(message, packed=isinstance(message, bytes))
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind in ("answer", "update"):
        return Reply(frame.get("id"), answer_of(frame), kind == "answer")
    if kind == "error":
        return Reply(frame.get("id"), problem_of(frame.get("problem")))
    if isinstance(kind, str):
        return None
    raise ReplyError(f"the server sent {shortened(message)}; expected an answer, an update or an error")


def decode(content: str | bytes, *, packed: bool = False) -> Any:
    """Decode JSON, or MessagePack bytes if `packed`.

    Raises
    ------
    ReplyError
        The content is not valid in this format.
    """
    try:
        return (
            msgspec.msgpack.decode(content) if isinstance(content, bytes) and packed else msgspec.json.decode(content)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        form = "MessagePack" if packed else "JSON"
        raise ReplyError(f"the server sent {shortened(content)}, which is not {form}: {error}") from error


def answer_of(content: Any) -> Answer:
    """Build an answer from its fields.

    Raises
    ------
    ReplyError
        A required field is missing or invalid.
    """
    if not isinstance(content, Mapping):
        raise ReplyError(f"the server sent {shortened(content)}; expected an answer")
    try:
        return Answer(**{name: convert(content[name]) for name, convert in _CONVERT.items() if name in content})
    except (TypeError, KeyError) as error:
        missing = [name for name in _REQUIRED if name not in content]
        what = f"without {missing[0]!r}" if missing else f"with invalid fields ({error})"
        raise ReplyError(f"the server sent an answer {what}; is it an anytime server?") from error


def problem_of(content: Any, status: int = 0, retry_after_s: float | None = None) -> ProblemError:
    """Build an error from problem details; `status` is the default if they have none."""
    if not isinstance(content, Mapping):
        content = {}

    def text(name: str, default: str) -> str:
        return content[name] if isinstance(content.get(name), str) else default

    number = content.get("status")
    return ProblemError(
        number if isinstance(number, int) else status,
        text("title", "a problem without a title"),
        text("detail", "the server refused the request without a reason"),
        text("field", "") or None,
        type=text("type", "about:blank"),
        retry_after_s=retry_after_s,
    )


def seconds_of(retry_after: str) -> float | None:
    """Return the seconds of a Retry-After header; None if it contains a date or is empty."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10 else None


def shortened(content: Any) -> str:
    """Return the start of a reply, for an error message."""
    text = repr(content)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _expected(value: Any) -> Expected:
    return Expected(value["cv_error"], value["explained_variance"], value["r2"], value.get("deviance"))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _unchanged(value: Any) -> Any:
    return value


def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint is Expected:
        return _expected
    has_tuple = any(get_origin(each) is tuple for each in (hint, *get_args(hint)))
    return _tuple if has_tuple else _unchanged


_HINTS = get_type_hints(Answer)
_CONVERT = {field.name: _converter(_HINTS[field.name]) for field in fields(Answer)}
_REQUIRED = tuple(f.name for f in fields(Answer) if f.default is MISSING and f.default_factory is MISSING)
