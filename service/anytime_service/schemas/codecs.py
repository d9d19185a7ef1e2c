"""The two forms of every message, JSON and MessagePack: decoding with exact errors, and encoding of answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.errors import BodyTooLargeError, FieldError, MalformedBodyError

PACK = "send MessagePack with packed values (bytes and a dtype), or fewer rows or groups at once"
"""Advice in the error about lists of values that are too large."""


class Decoder(Protocol):
    """Decoder of messages of one type."""

    def decode(self, content: Any, /) -> Any: ...


@dataclass(frozen=True)
class Form:
    """A wire format of messages."""

    name: str
    media_type: str
    encode: Callable[[Any], bytes]


JSON = Form("JSON", "application/json", msgspec.json.Encoder().encode)
MSGPACK = Form("MessagePack", "application/msgpack", msgspec.msgpack.Encoder().encode)


def decoders(json: Any, msgpack: Any = None) -> Mapping[str, Decoder]:
    """Return decoders of messages of one type by the name of the form; the type may differ in MessagePack."""
    return {JSON.name: msgspec.json.Decoder(json), MSGPACK.name: msgspec.msgpack.Decoder(msgpack or json)}


def read(form: Form, decoder: Decoder, content: bytes | str, what: str = "the body") -> Any:
    """Return a decoded message; raise MalformedBodyError, which names the place, if it is not of this form and type."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        message, place = located(error)
        raise MalformedBodyError(f"{place or what}: {message}", place or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBodyError(f"{what} is not {form.name}: {error}") from error
    except RecursionError as error:
        raise MalformedBodyError(
            f"{what} is nested too deeply; values are lists of numbers, or lists of such lists"
        ) from error


def too_large(what: str, limit: int) -> BodyTooLargeError:
    """Return the error for lists of values that are too large; the limit of packed values is higher."""
    return BodyTooLargeError(f"{what}; expected at most {limit}; {PACK}")


def of_group(error: MalformedBodyError, group: str | None) -> MalformedBodyError:
    """Return an error about `values` with the name of the group, if it is known."""
    if group is None or error.field is None or not error.field.startswith("values"):
        return error
    return MalformedBodyError(f"group {group!r}: {error}", f"groups.{group}{error.field.removeprefix('values')}")


def located(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return a decoder's message, and the place that it names: `rows` for "Expected `int` - at `$.rows`"."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key` in `)?\$\.?(.*)`)?", str(error), re.DOTALL)
    message, place = (match[1], match[2] or "") if match else (str(error), "")
    return message[:1].lower() + message[1:], place


def encode_answer(form: Form, answer: Answer) -> bytes:
    """Return an encoded answer; raise FieldError if it is not finite, since JSON would encode it as null."""
    check_finite(answer, "groups")
    return form.encode(_fields(answer))


def encode_reply(form: Form, kind: Literal["answer", "update"], name: str | int, answer: Answer) -> bytes:
    """Return an answer encoded as a message with type and id; raise errors as `encode_answer`."""
    check_finite(answer, "groups")
    return form.encode({"type": kind, "id": name} | _fields(answer))


def check_finite(answer: Answer, field: str) -> None:
    """Raise FieldError about `field` if the prediction or its interval overflowed and is not finite."""
    finite = _is_finite(answer.prediction if answer.probabilities is None else answer.probabilities)
    if answer.contributions is not None:
        finite = finite and all(map(_is_finite, answer.contributions.groups.values()))
    if not finite or (answer.interval is not None and not _is_finite(answer.interval)):
        raise FieldError(field, "the values are too large: the prediction is not a finite number")


def _is_finite(numbers: Any) -> bool:
    """Return whether a number, or each number of a nested list, is finite; numpy takes .4 us for a single one."""
    return math.isfinite(numbers) if isinstance(numbers, float) else bool(np.isfinite(numbers).all())


def _fields(answer: Answer) -> dict[str, Any]:
    """Return the fields that the server sends: all but those that only a local caller knows."""
    fields = vars(answer).copy()
    for name in LOCAL_FIELDS:
        del fields[name]
    return fields
