"""Sessions as Redis stores them: little-endian numbers with a checksum, and no code.

Other programs may write to the same Redis. So everything read from it is checked like what a client sends: sizes,
names, numbers of rows, revisions and values. Damage is an error of that session, never a number in an answer.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Float
from anytime_service.errors import DamagedSessionError
from anytime_service.sessions.scripts import FORMAT

__all__ = [
    "About",
    "Bounds",
    "Kept",
    "Message",
    "Snapshot",
    "damaged",
    "packed",
    "pieces",
    "read_about",
    "read_address",
    "read_message",
    "read_rows",
    "read_snapshot",
    "unpacked",
]

_HEAD = struct.Struct("<II")  # checksum and rows of what is packed; revision and whether it came again of what is kept
_LENGTH = struct.Struct("<I")
_GROUP = b"g:"
_WHOLE = re.compile(rb"[0-9]{1,15}")
_MAX_REVISION = 2**32 - 1
_FIELDS = 6
"""Fields of a session that are no group, at most."""


class Bounds(NamedTuple):
    """What a session can have at most: rows, fields of its hash, and bytes of all fields."""

    rows: int
    fields: int
    size: int

    @classmethod
    def of(cls, models: Iterable[Model], rows: int) -> Bounds:
        """Return the bounds of sessions of `models`, with `rows` rows at most."""
        fields, size = 0, 0
        for model in models:
            names = sum(len(name.encode()) for name in model.places)
            fields = max(fields, len(model.places))
            size = max(size, names + 8 * rows * len(model.prefixes.mean) + len(model.name.encode()))
        return cls(rows, _FIELDS + fields, size + 64 * (_FIELDS + fields) + 1024)


class About(NamedTuple):
    """What never changes in a session: its model, and its rows once they are known."""

    name: str
    version: str
    rows: int | None


class Kept(NamedTuple):
    """A group in a session: the revision that brought it, whether it came again, and its values as packed."""

    revision: int
    again: bool
    content: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of a session; `rows` is None where nobody told and no values have come."""

    name: str
    version: str
    rows: int | None
    revision: int
    groups: Mapping[str, Kept]


@dataclass(frozen=True, slots=True)
class Message:
    """Groups that one post brought, as packed; revision 0 says that the session has ended."""

    session: str
    revision: int
    groups: Mapping[str, bytes]


def packed(session: str, name: str, array: Float) -> bytes:
    """Pack the values of a group, (rows, features), NaN where one is missing."""
    content = array.astype("<f8", copy=False).tobytes()
    return _HEAD.pack(_checksum(session, name, content), len(array)) + content


def unpacked(session: str, prediction: Prediction, groups: Mapping[str, bytes], max_rows: int) -> dict[str, Float]:
    """Return values of groups as `Prediction.take` accepts them.

    Raises
    ------
    DamagedSessionError
        They are not what was packed for this session and its model.
    """
    arrays = {name: _unpacked(session, prediction, name, content, max_rows) for name, content in groups.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        raise damaged(session, "its groups have different numbers of rows")
    return arrays


def read_about(session: str, fields: Sequence[bytes | None], max_rows: int) -> About:
    """Read format, name, version and rows of a session, None where one is missing.

    Raises
    ------
    DamagedSessionError
        Another release or another program wrote them.
    """
    form, name, version, rows = fields
    if form != FORMAT.encode():
        raise damaged(session, f"it is of format {(form or b'none')[:10].decode(errors='replace')}, not {FORMAT}")
    try:
        model, told = (name or b"").decode(), (version or b"").decode()
    except UnicodeDecodeError as error:
        raise damaged(session, "the name or version of its model is not UTF-8") from error
    if not model:
        raise damaged(session, "it names no model")
    return About(model, told, read_rows(session, rows, max_rows))


def read_rows(session: str, content: bytes | None, max_rows: int) -> int | None:
    """Read a number of rows, None where it is 0, which stands for not known yet; raises DamagedSessionError."""
    try:
        rows = _whole(content)
    except ValueError as error:
        raise damaged(session, f"its number of rows is {_shown(content)}; expected 0 to {max_rows}") from error
    if rows > max_rows:
        raise damaged(session, f"its number of rows is {rows}; expected 0 to {max_rows}")
    return rows or None


def pieces(content: bytes, most: int) -> list[bytes]:
    """Split what was joined, each piece after its length.

    Raises
    ------
    ValueError
        It was not joined like this, is cut off, or has more than `most` pieces.
    """
    found: list[bytes] = []
    at, end = 0, len(content)
    while at + _LENGTH.size <= end and len(found) < most:
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + length
        found.append(content[at - length : at])
    if at != end:
        raise ValueError(f"{len(content)} bytes are not up to {most} pieces, each after its length")
    return found


def read_snapshot(session: str, content: bytes, bounds: Bounds) -> Snapshot:
    """Read the hash of a session, as pieces: names of fields and values in turn; raises DamagedSessionError."""
    try:
        fields = pieces(content, 2 * bounds.fields)
        told = dict(zip(fields[::2], fields[1::2], strict=True))
        revision = _whole(told.get(b"revision"))
        groups = {
            name[2:].decode(): _kept(content, revision) for name, content in told.items() if name.startswith(_GROUP)
        }
    except (ValueError, struct.error) as error:
        raise damaged(session, "its fields are not those of a session") from error
    about = read_about(session, [told.get(name) for name in (b"format", b"name", b"version", b"rows")], bounds.rows)
    if groups and about.rows is None:
        raise damaged(session, f"it has {len(groups)} groups of 0 rows")
    return Snapshot(about.name, about.version, about.rows, revision, groups)


def read_address(content: bytes) -> str:
    """Read only the id of the session that a message is about.

    Raises
    ------
    DamagedSessionError
        It is not a message of this service.
    """
    try:
        (first,) = _LENGTH.unpack_from(content)
        (second,) = _LENGTH.unpack_from(content, _LENGTH.size + first)
        return content[2 * _LENGTH.size + first :][:second].decode("ascii")
    except (struct.error, ValueError) as error:
        raise DamagedSessionError("received a message that this service did not send; it was ignored") from error


def read_message(content: bytes, bounds: Bounds) -> Message:
    """Read a message; raises DamagedSessionError."""
    session = read_address(content)
    if len(content) > bounds.size:
        raise damaged(session, f"a message about it has {len(content)} bytes; expected at most {bounds.size}")
    try:
        found = pieces(content, 2 * bounds.fields)
        revision = _whole(found[0])
        groups = {name.decode(): each for name, each in zip(found[2::2], found[3::2], strict=True)}
    except (IndexError, ValueError) as error:
        raise damaged(session, f"a message about it is damaged ({str(error)[:100]})") from error
    return Message(session, revision, groups)


def damaged(session: str, what: str) -> DamagedSessionError:
    """Return the error for a session that Redis does not store as this service wrote it."""
    return DamagedSessionError(
        f"session {session[:64]!r} is damaged in Redis: {what}; begin another session by POST /sessions"
    )


def _unpacked(session: str, prediction: Prediction, name: str, content: bytes, max_rows: int) -> Float:
    place = prediction.model.places.get(name)
    if place is None:
        raise damaged(session, f"it has a group {name[:64]!r}, which its model does not have")
    width = place.stop - place.start
    check, rows = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (0, 0)
    body = content[_HEAD.size :]
    if not 1 <= rows <= max_rows or len(body) != rows * width * 8 or check != _checksum(session, name, body):
        raise damaged(session, f"the values of group {name!r} are not what was written")
    try:
        return prediction.checked(name, np.frombuffer(body, "<f8").reshape(rows, width))
    except ValuesError as error:
        raise damaged(session, str(error)) from error


def _kept(content: bytes, newest: int) -> Kept:
    revision, again = _HEAD.unpack_from(content)
    if not 1 <= revision <= newest or again > 1:
        raise ValueError(f"revision {revision} of a session at revision {newest}")
    return Kept(revision, bool(again), content[_HEAD.size :])


def _whole(content: bytes | None) -> int:
    """Read a whole number that is written in digits, as a revision and a number of rows are."""
    if content is None or _WHOLE.fullmatch(content) is None or int(content) > _MAX_REVISION:
        raise ValueError(f"{_shown(content)} is not a whole number up to {_MAX_REVISION}")
    return int(content)


def _shown(content: bytes | None) -> str:
    return "missing" if content is None else repr(content[:20].decode(errors="replace"))


def _checksum(session: str, name: str, content: bytes) -> int:
    """Checksum of values in their place, so that those of another group or session do not pass."""
    return zlib.crc32(content, zlib.crc32(f"{session}/{name}".encode()))
