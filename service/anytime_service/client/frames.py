"""What is sent: begin, group and end as MessagePack frames, and the values of a group in them.

Arrays travel as their bytes, 4 bytes a number if that is what they have and 8 if not: nothing is turned into text, and
nothing is rounded. Lists, in which None is a value that is missing, travel as lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from anytime.errors import ValuesError, summary

__all__ = ["Begin", "Encoded", "End", "Group", "encode_all", "encode_frame", "encode_groups", "encode_values"]


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
