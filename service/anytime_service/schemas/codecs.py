"""The two forms of every message, JSON and MessagePack: decoding with exact errors, and encoding of answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from anytime.inference.contributions import Contributions
from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.errors import BodyTooLargeError, FieldError, MalformedBodyError

PIECE = 10_000  # numbers of an answer that are encoded at once: in a millisecond

MAX_SEARCHED = 64 * 1024  # bytes of JSON that are searched for keys given twice: in a quarter of a millisecond

PACK = "send MessagePack with packed values (bytes and a dtype), or fewer rows or groups at once"
"""Advice in the error about lists of values that are too large."""


Content: TypeAlias = bytes | bytearray
"""A message as received."""


Decoded_co = TypeVar("Decoded_co", covariant=True)


class Decoder(Protocol[Decoded_co]):
    """Decoder of messages of one type."""

    def decode(self, content: Any, /) -> Decoded_co: ...


@dataclass(frozen=True)
class Form:
    """A wire format of messages."""

    name: str
    media_type: str
    encode: Callable[[Any], bytes]


def _number(value: Any) -> Any:
    """Return a number of numpy as Python's: contributions of one row are such numbers in an answer of the worker."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


JSON = Form("JSON", "application/json", msgspec.json.Encoder(enc_hook=_number).encode)
MSGPACK = Form("MessagePack", "application/msgpack", msgspec.msgpack.Encoder(enc_hook=_number).encode)


def decoders(json: Any, msgpack: Any = None) -> Mapping[str, Decoder[Any]]:
    """Return decoders of messages of one type by the name of the form; the type may differ in MessagePack."""
    return {JSON.name: msgspec.json.Decoder(json), MSGPACK.name: msgspec.msgpack.Decoder(msgpack or json)}


def read(
    form: Form, decoder: Decoder[Decoded_co], content: Content | str, what: str = "the body", within: str = ""
) -> Decoded_co:
    """Return a decoded message, or the part of one at the place `within`.

    Raise MalformedBodyError, which names the place, if it is not of this form and type, or gives a key twice; the
    decoder alone would use the last. JSON of more than `MAX_SEARCHED` bytes is not searched for keys given twice.
    """
    try:
        decoded = decoder.decode(content)
        kind: Any = type(decoded)
        groups = decoded if isinstance(decoded, dict) else getattr(decoded, "groups", ())
        if form is not JSON:
            _check_map(content, groups, is_map=groups is decoded)
        elif len(content) <= MAX_SEARCHED:
            colons = content.count(":" if isinstance(content, str) else b":")  # type: ignore[arg-type]
            required, optional = _fields_of(kind)
            more = colons - required - len(groups)
            # Or a text has colons, or a default is stated.
            if more > 0 and more > sum([getattr(decoded, name) != default for name, default in optional]):
                _SEARCH.decode(content if isinstance(content, str) else content.decode())
    except msgspec.ValidationError as error:
        message, place = located(error)
        place = f"{within}{place}"
        raise MalformedBodyError(f"{place or what}: {message}", place or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBodyError(f"{what} is not {form.name}: {error}") from error
    except RecursionError as error:
        raise MalformedBodyError(
            f"{what} is nested too deeply; values are lists of numbers, or lists of such lists"
        ) from error
    return decoded


@cache
def _fields_of(cls: Any) -> tuple[int, list[tuple[str, Any]]]:
    """Return the smallest number of keys of a message without those of its groups, and its options by default."""
    if not issubclass(cls, msgspec.Struct):
        return 0, []
    fields = msgspec.structs.fields(cls)
    required = sum(field.required for field in fields) + (cls.__struct_config__.tag is not None)
    return required, [(field.name, field.default) for field in fields if field.default is not msgspec.NODEFAULT]


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise msgspec.ValidationError(f"Key {twice!r} is given more than once; send it once")


_SEARCH = json.JSONDecoder(object_pairs_hook=_once, parse_int=len, parse_float=len)
_MAP = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def map_size(content: bytes | bytearray | msgspec.Raw) -> int:
    """Return the number of items of a MessagePack map."""
    head = bytes(memoryview(content)[:5])
    return head[0] & 0x0F if head[0] & 0xF0 == 0x80 else int.from_bytes(head[1 : 3 if head[0] == 0xDE else 5], "big")


def _check_map(content: Any, groups: Any, *, is_map: bool) -> None:
    """Raise ValidationError if a key of a message is there twice, or of its groups; `is_map` if it is a map of them."""
    items = groups if is_map else _MAP.decode(content)
    if map_size(content) > len(items) or (not is_map and "groups" in items and map_size(items["groups"]) > len(groups)):
        raise msgspec.ValidationError("A key is given more than once; send it once")


def too_large(what: str, limit: int) -> BodyTooLargeError:
    """Return the error for lists of values that are too large; the limit of packed values is higher."""
    return BodyTooLargeError(f"{what}; expected at most {limit}; {PACK}")


_PLACED = re.compile(r"(.*?)(?: - at `(key` in `)?\$\.?(.*)`)?", re.DOTALL)
_QUOTED = 1000  # characters of each end of a decoder's message that are read; it quotes texts of the request in full
_OF_LENGTH = re.compile(r"Expected `(\w+)` of length (<=|>=) (\d+)")
_ELEMENTS = {"str": "characters", "bytes": "bytes", "object": "names"}


def located(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return a decoder's message, and the place that it names: `rows` for "Expected `int` - at `$.rows`"."""
    text = str(error)
    if len(text) > 2 * _QUOTED:
        text = f"{text[:_QUOTED]} ... {text[-_QUOTED:]}"
    found = _PLACED.fullmatch(text)
    message, is_key, place = (found[1], found[2], found[3] or "") if found else (text, None, "")
    length = _OF_LENGTH.fullmatch(message)
    if length:
        kind, sign, limit = length.groups()
        than, bound = ("fewer", "least") if sign == ">=" else ("more", "most")
        message = (
            f"{'a name' if is_key else 'it'} has {than} than {limit} {_ELEMENTS.get(kind, 'items')}; "
            f"send at {bound} {limit}"
        )
    return message[:1].lower() + message[1:], place


_LONG = frozenset((list, dict, np.ndarray, Contributions))
"""Types of what may have many numbers."""


def in_pieces(form: Form, value: Any, piece: int = PIECE) -> Any:
    """Return a part of an answer; if it has many numbers, encoded in pieces: other threads may run in between."""
    if type(value) not in _LONG:
        return value
    if isinstance(value, Contributions):
        return {name: in_pieces(form, each) for name, each in vars(value).items()}
    is_map, is_array, size = isinstance(value, dict), isinstance(value, np.ndarray), len(value)
    step = _step(value.values() if is_map else value, piece)
    if size <= step:
        return value.tolist() if is_array else value
    pairs: Any = list(value.items()) if is_map else value
    parts: list[bytes] = []
    for i in range(0, size, step):
        some = pairs[i : i + step]
        content = form.encode(dict(some) if is_map else some.tolist() if is_array else some)
        head = 1 if form is JSON or len(some) < 16 else 3 if len(some) < 1 << 16 else 5  # bytes before the first item
        parts.append(content[head : -1 if form is JSON else None])
    if form is JSON:
        return msgspec.Raw(b",".join(parts).join((b"{", b"}") if is_map else (b"[", b"]")))
    return msgspec.Raw(b"".join((b"\xdf" if is_map else b"\xdd", size.to_bytes(4, "big"), *parts)))


def _step(items: Iterable[Any], piece: int) -> int:
    """Return how many items of a list have about as many numbers as a piece."""
    first = next(iter(items), None)
    return max(1, piece // (len(first) if isinstance(first, list | np.ndarray) and len(first) else 1))


def check_finite(answer: Answer, field: str) -> None:
    """Raise FieldError about `field` if a number of an answer overflowed and is not finite."""
    numbers = [answer.prediction if answer.probabilities is None else answer.probabilities, answer.interval]
    if answer.contributions is not None:
        numbers += answer.contributions.groups.values()
    for each in numbers:
        # NumPy takes .4 us for a single number.
        if not (each is None or (math.isfinite(each) if isinstance(each, float) else _are_finite(each))):
            raise FieldError(field, "the values are too large: the prediction is not a finite number")


def _are_finite(numbers: Any) -> bool:
    """Return whether each number of a nested list is finite."""
    step = _step(numbers, PIECE)
    return all(np.isfinite(numbers[i : i + step]).all() for i in range(0, len(numbers), step))


BY_ROW = ("prediction", "probabilities", "interval", "prediction_set")
"""Fields of an answer that have an element for each row; of one row they are that element."""

NUMBERS = (*BY_ROW, "ranking", "contributions")
"""Fields of an answer that may have many numbers."""


def answer_fields(form: Form, answer: Answer) -> dict[str, Any]:
    """Return the fields that the server sends: all but those that only a local caller knows.

    Those of many rows are encoded already. Raise FieldError if the answer is not finite: in JSON it would be null.
    """
    check_finite(answer, "groups")
    fields = vars(answer).copy()
    for name in LOCAL_FIELDS:
        del fields[name]
    fields |= {name: in_pieces(form, fields[name]) for name in NUMBERS if type(fields[name]) in _LONG}
    return fields
