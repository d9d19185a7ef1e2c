"""What is sent: begin, group and end as MessagePack frames, and the values of a group in them.

Arrays travel as their bytes, 4 bytes a number if that is what they have and 8 if not: nothing is turned into text, and
nothing is rounded. Lists, in which None is a value that is missing, travel as lists.

What is received: answers, updates and problems, from frames and from bodies.

A newer server may say more than this client knows: fields that are not known here are left out, and values are taken as
they come. Nothing else is believed: what is no such reply at all raises ReplyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from anytime.errors import ValuesError, summary
from anytime.inference.answer import Answer
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
    """Open a prediction."""

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
    """Values of one group; bytes if there is a `dtype`."""

    id: int
    group: str
    values: msgspec.Raw
    dtype: str | None = None
    took_ms: float | None = None


class End(msgspec.Struct, tag_field="type", tag="end", frozen=True):
    """Nothing more will come."""

    id: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Values of a group, ready to be put in a frame as often as need be.

    Attributes
    ----------
    values : MessagePack, a list or the bytes of an array.
    dtype : "f4" or "f8" for bytes.
    rows : how many rows there are.
    """

    values: msgspec.Raw
    dtype: str | None
    rows: int


def encode_values(group: str, values: Any, rows: int | None = None) -> Encoded:
    """Encode what an extractor returned or a caller handed over.

    Parameters
    ----------
    group : its name, for messages.
    values : (rows, features), or (features,) for one row: an array, what numpy makes an array of, or lists.
    rows : how many rows there must be; None for as many as there are.

    Raises
    ------
    ValuesError
        These are no numbers, no array, or not of that many rows. How many features there must be the server will say.
    """
    if isinstance(values, list | tuple):
        return _encoded_list(group, values, rows)
    try:
        array = np.asarray(values)
    except Exception as error:  # whatever the making of an array of somebody's object raises
        raise ValuesError(
            f"values of group {group!r} cannot be read as an array ({summary(error)}); expected rows x features"
        ) from error
    if array.dtype == object and array.ndim:  # None among numbers
        return _encoded_list(group, array.tolist(), rows)
    if array.dtype.kind not in "biuf":
        raise ValuesError(f"values of group {group!r} are not numbers; expected an array (rows, features), or lists")
    shape = " x ".join(map(str, array.shape)) or "a single value"
    count = array.shape[0] if array.ndim == 2 else 1
    if array.ndim not in (1, 2) or rows not in (None, count):
        told = f"{rows} rows" if rows is not None else "rows"
        raise ValuesError(f"values of group {group!r} are {shape}; expected {told} x features")
    dtype = "f4" if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else "f8"
    packed = np.ascontiguousarray(array, dtype=f"<{dtype}")
    return Encoded(msgspec.Raw(msgspec.msgpack.encode(packed.data)), dtype, count)


def encode_all(groups: Mapping[str, Any], rows: int | None = None) -> dict[str, Encoded]:
    """Encode groups of as many rows each, by name; raises as `encode_values`."""
    encoded: dict[str, Encoded] = {}
    for name, values in groups.items():
        encoded[name] = encode_values(name, values, rows)
        rows = encoded[name].rows
    return encoded


def encode_frame(frame: Begin | Group | End) -> bytes:
    """Write a frame."""
    return msgspec.msgpack.encode(frame)


def encode_groups(groups: Mapping[str, Encoded]) -> bytes:
    """Write groups as the body of a session's request, in MessagePack."""
    packed = {name: {"dtype": each.dtype, "values": each.values} for name, each in groups.items() if each.dtype}
    return msgspec.msgpack.encode({name: packed.get(name, each.values) for name, each in groups.items()})


def _encoded_list(group: str, values: Sequence[Any], rows: int | None) -> Encoded:
    nested = bool(values) and isinstance(values[0], list | tuple | np.ndarray)
    count = len(values) if nested else 1
    if rows is not None and count != rows:
        raise ValuesError(f"values of group {group!r} have {count} rows; expected {rows}")
    try:
        content = msgspec.msgpack.encode(values, enc_hook=_plain)
        _NUMBERS.decode(content)  # the server would refuse the rest too, but not say whose values these are
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValuesError(
            f"values of group {group!r} are not all numbers ({error}); expected numbers, None where one is missing"
        ) from error
    return Encoded(msgspec.Raw(content), None, count)


_Number: TypeAlias = float | bool | None
_NUMBERS = msgspec.msgpack.Decoder(list[_Number | list[_Number]])


def _plain(item: Any) -> Any:
    """Numbers and rows of numpy as Python's."""
    if isinstance(item, np.ndarray | np.generic):
        return item.tolist()
    raise TypeError(f"{type(item).__name__} is not a number")


_SHOWN = 200
"""Characters of a reply that is not understood that a message shows."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame of the server, about the prediction `id`; None where it is about none.

    `content` is an answer or a problem; `final` is False for an update.
    """

    id: Any
    content: Answer | ProblemError
    final: bool = True


def decode_reply(message: str | bytes) -> Reply | None:
    """Read a frame; None for one of a type that is not known here.

    Raises
    ------
    ReplyError
        It is no frame of this protocol.
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
    """Read JSON, or MessagePack if it is `packed`.

    Raises
    ------
    ReplyError
        It is neither.
    """
    try:
        return (
            msgspec.msgpack.decode(content) if isinstance(content, bytes) and packed else msgspec.json.decode(content)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        form = "MessagePack" if packed else "JSON"
        raise ReplyError(f"the server sent {shortened(content)}, which is not {form}: {error}") from error


def answer_of(told: Any) -> Answer:
    """Make an answer from its fields.

    Raises
    ------
    ReplyError
        A field that an answer must have is not there.
    """
    if not isinstance(told, Mapping):
        raise ReplyError(f"the server sent {shortened(told)}; expected an answer")
    try:
        return Answer(**{name: convert(told[name]) for name, convert in _CONVERT.items() if name in told})
    except (TypeError, KeyError) as error:
        missing = [name for name in _REQUIRED if name not in told]
        what = f"without {missing[0]!r}" if missing else f"that cannot be read ({error})"
        raise ReplyError(f"the server sent an answer {what}; is it a server of this kind?") from error


def problem_of(told: Any, status: int = 0, retry_after_s: float | None = None) -> ProblemError:
    """Make an error from problem details; `status` is the one to tell where they have none."""
    if not isinstance(told, Mapping):
        told = {}

    def text(name: str, default: str) -> str:
        return told[name] if isinstance(told.get(name), str) else default

    number = told.get("status")
    return ProblemError(
        number if isinstance(number, int) else status,
        text("title", "a problem without a title"),
        text("detail", "the server refused, and did not say why"),
        text("field", "") or None,
        type=text("type", "about:blank"),
        retry_after_s=retry_after_s,
    )


def seconds_of(retry_after: str) -> float | None:
    """Seconds that a Retry-After header tells; None where it tells a date, or nothing."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10 else None


def shortened(content: Any) -> str:
    """The beginning of a reply, for a message."""
    text = repr(content)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _expected(told: Any) -> Expected:
    return Expected(told["cv_error"], told["explained_variance"], told["r2"], told.get("deviance"))


def _tuple(told: Any) -> Any:
    return tuple(told) if isinstance(told, list) else told


def _as_it_is(told: Any) -> Any:
    return told


def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint is Expected:
        return _expected
    has_tuple = any(get_origin(each) is tuple for each in (hint, *get_args(hint)))
    return _tuple if has_tuple else _as_it_is


_HINTS = get_type_hints(Answer)
_CONVERT = {field.name: _converter(_HINTS[field.name]) for field in fields(Answer)}
_REQUIRED = tuple(f.name for f in fields(Answer) if f.default is MISSING and f.default_factory is MISSING)
