"""Groups as Redis keeps them: little-endian numbers with a checksum, and nothing that could be run.

Redis is a place where others may write too. What comes out of it is checked like what a client sends, and what is
damaged is an error, not a number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anytime.arrays import Float
from anytime.errors import ValuesError
from anytime.prediction import Prediction
from anytime_service.errors import DamagedSessionError
from anytime_service.sessions.scripts import FORMAT

__all__ = [
    "Kept",
    "Message",
    "Snapshot",
    "checked_format",
    "packed",
    "pieces",
    "read_message",
    "read_snapshot",
    "unpacked",
]

_HEAD = struct.Struct("<II")  # checksum and rows of what is packed; revision and whether it came again of what is kept
_LENGTH = struct.Struct("<I")
_GROUP = b"g:"


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


def unpacked(session: str, prediction: Prediction, groups: Mapping[str, bytes]) -> dict[str, Float]:
    """Values of groups as `prediction` takes them.

    Raises
    ------
    DamagedSessionError
        They are not what was packed for this session and its model.
    """
    arrays = {name: _unpacked(session, prediction, name, content) for name, content in groups.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        raise _damaged(session, "its groups have different numbers of rows")
    return arrays


def checked_format(session: str, told: bytes | None) -> None:
    """Raise DamagedSessionError for a session that was written by another release, or by something else."""
    if told != FORMAT.encode():
        raise _damaged(session, f"it is of format {(told or b'none')[:10].decode(errors='replace')}, not {FORMAT}")


def pieces(content: bytes) -> list[bytes]:
    """Take apart what was joined, each piece after its length.

    Raises
    ------
    DamagedSessionError
        It was not, or is cut off.
    """
    found: list[bytes] = []
    at, end = 0, len(content)
    while at + _LENGTH.size <= end:
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + length
        found.append(content[at - length : at])
    if at != end:
        raise DamagedSessionError("a message came that was cut off, or is not one of this service")
    return found


def read_snapshot(session: str, content: bytes) -> Snapshot:
    """Read the hash of a session, pieces that are names of fields and values in turn; raises DamagedSessionError."""
    fields = pieces(content)
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    checked_format(session, told.get(b"format"))
    try:
        rows, revision = int(told[b"rows"]), int(told[b"revision"])
        name, version = told[b"name"].decode(), told[b"version"].decode()
        groups = {name[2:].decode(): _kept(content) for name, content in told.items() if name.startswith(_GROUP)}
    except (KeyError, ValueError, struct.error) as error:
        raise _damaged(session, "its fields are not those of a session") from error
    if rows < 0 or (groups and not rows):
        raise _damaged(session, f"it has {len(groups)} groups of {rows} rows")
    return Snapshot(name, version, rows or None, revision, groups)


def read_message(content: bytes) -> Message:
    """Read a message; raises DamagedSessionError."""
    found = pieces(content)
    try:
        revision, session = int(found[0]), found[1].decode("ascii")
        groups = {name.decode(): each for name, each in zip(found[2::2], found[3::2], strict=True)}
    except (IndexError, ValueError) as error:
        raise DamagedSessionError("a message came that is not one of this service") from error
    return Message(session, revision, groups)


def _unpacked(session: str, prediction: Prediction, name: str, content: bytes) -> Float:
    place = prediction.model.places.get(name)
    if place is None:
        raise _damaged(session, f"it has a group {name[:64]!r}, which its model has not")
    width = place.stop - place.start
    check, rows = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (0, 0)
    body = content[_HEAD.size :]
    if not rows or len(body) != rows * width * 8 or check != _checksum(session, name, body):
        raise _damaged(session, f"the values of group {name!r} are not what was written")
    try:
        return prediction.checked(name, np.frombuffer(body, "<f8").reshape(rows, width))
    except ValuesError as error:
        raise _damaged(session, str(error)) from error


def _kept(content: bytes) -> Kept:
    revision, again = _HEAD.unpack_from(content)
    return Kept(revision, bool(again), content[_HEAD.size :])


def _checksum(session: str, name: str, content: bytes) -> int:
    """Checksum of values in their place, so that those of another group or session do not pass."""
    return zlib.crc32(content, zlib.crc32(f"{session}/{name}".encode()))


def _damaged(session: str, what: str) -> DamagedSessionError:
    return DamagedSessionError(
        f"session {session[:64]!r} cannot be used as it is kept in Redis: {what}; begin another by POST /sessions"
    )
