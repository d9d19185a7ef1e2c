"""Format of sessions in Redis: little-endian numbers with a checksum, never code.

Other programs may write to the same Redis server. Therefore all data read from it are validated like data of clients:
sizes, names, numbers of rows, revisions and values. Damaged data are an error of the session and never reach an answer.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Float
from anytime_service.clock import now_ms
from anytime_service.errors import DamagedSessionError, MissingVersionError
from anytime_service.models.registry import ModelRegistry
from anytime_service.sessions.scripts import FORMAT

__all__ = [
    "MAX_KEPT",
    "Bounds",
    "Message",
    "ModelVersions",
    "SessionInfo",
    "Snapshot",
    "StoredGroup",
    "damaged",
    "packed",
    "pieces",
    "read_address",
    "read_info",
    "read_message",
    "read_rows",
    "read_snapshot",
    "unpacked",
]

_HEAD = struct.Struct(
    "<II"
)  # packed values: checksum and rows; stored groups: revision and whether the group was sent again
_LENGTH = struct.Struct("<I")
_GROUP = b"g:"
_DIGITS = re.compile(rb"[0-9]{1,15}")
_MAX_REVISION = 2**32 - 1
_FIELDS = 6
"""Largest number of fields of a session that are not groups."""


class Bounds(NamedTuple):
    """Largest sizes of a session: rows, fields of its hash, and bytes of all fields."""

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


class SessionInfo(NamedTuple):
    """Constant properties of a session: its model, and its number of rows once known."""

    name: str
    version: str
    rows: int | None


class StoredGroup(NamedTuple):
    """A group in a session: the revision that added it, whether it was sent again, and its packed values."""

    revision: int
    again: bool
    content: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Complete content of a session; `rows` is None if the client gave none and sent no values yet."""

    name: str
    version: str
    rows: int | None
    revision: int
    groups: Mapping[str, StoredGroup]


@dataclass(frozen=True, slots=True)
class Message:
    """Packed groups of one post; revision 0 means that the session has ended."""

    session: str
    revision: int
    groups: Mapping[str, bytes]


def packed(session: str, name: str, array: Float) -> bytes:
    """Pack the values of a group, shape (rows, features), with NaN for missing values."""
    content = array.astype("<f8", copy=False).tobytes()
    return _HEAD.pack(_checksum(session, name, content), len(array)) + content


def unpacked(session: str, prediction: Prediction, groups: Mapping[str, bytes], max_rows: int) -> dict[str, Float]:
    """Return values of groups as `Prediction.add_checked` accepts them.

    Raises
    ------
    DamagedSessionError
        The values were not packed for this session and its model.
    """
    arrays = {name: _unpacked(session, prediction, name, content, max_rows) for name, content in groups.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        raise damaged(session, "its groups have different numbers of rows")
    return arrays


def read_info(session: str, fields: Sequence[bytes | None], max_rows: int) -> SessionInfo:
    """Read format, name, version and rows of a session; a missing field is None.

    Raises
    ------
    DamagedSessionError
        Another release or another program wrote them.
    """
    form, name, version, rows = fields
    if form != FORMAT.encode():
        raise damaged(session, f"its format is {(form or b'missing')[:10].decode(errors='replace')}; expected {FORMAT}")
    try:
        model, number = (name or b"").decode(), (version or b"").decode()
    except UnicodeDecodeError as error:
        raise damaged(session, "the name or version of its model is not UTF-8") from error
    if not model:
        raise damaged(session, "the name of its model is empty")
    return SessionInfo(model, number, read_rows(session, rows, max_rows))


def read_rows(session: str, content: bytes | None, max_rows: int) -> int | None:
    """Read a number of rows; return None for 0, which means not known yet; raises DamagedSessionError."""
    try:
        rows = _integer(content)
    except ValueError as error:
        raise damaged(session, f"its number of rows is {_shown(content)}; expected 0 to {max_rows}") from error
    if rows > max_rows:
        raise damaged(session, f"its number of rows is {rows}; expected 0 to {max_rows}")
    return rows or None


def pieces(content: bytes, limit: int) -> list[bytes]:
    """Split joined pieces; each piece follows its length.

    Raises
    ------
    ValueError
        The content is not in this format, is truncated, or has more than `limit` pieces.
    """
    found: list[bytes] = []
    at, end = 0, len(content)
    while at + _LENGTH.size <= end and len(found) < limit:
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + length
        found.append(content[at - length : at])
    if at != end:
        raise ValueError(f"{len(content)} bytes; expected at most {limit} pieces, each after its length")
    return found


def read_snapshot(session: str, content: bytes, bounds: Bounds) -> Snapshot:
    """Read the hash of a session from pieces (alternating names and values); raises DamagedSessionError."""
    try:
        fields = pieces(content, 2 * bounds.fields)
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        revision = _integer(values.get(b"revision"))
        groups = {
            name[2:].decode(): _stored_group(content, revision)
            for name, content in values.items()
            if name.startswith(_GROUP)
        }
    except (ValueError, struct.error) as error:
        raise damaged(session, "its fields are not those of a session") from error
    about = read_info(session, [values.get(name) for name in (b"format", b"name", b"version", b"rows")], bounds.rows)
    if groups and about.rows is None:
        raise damaged(session, f"it has {len(groups)} groups of 0 rows")
    return Snapshot(about.name, about.version, about.rows, revision, groups)


def read_address(content: bytes) -> str:
    """Read only the session id of a message.

    Raises
    ------
    DamagedSessionError
        The message was not sent by this service.
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
        revision = _integer(found[0])
        groups = {name.decode(): each for name, each in zip(found[2::2], found[3::2], strict=True)}
    except (IndexError, ValueError) as error:
        raise damaged(session, f"a message about it is damaged ({str(error)[:100]})") from error
    return Message(session, revision, groups)


def damaged(session: str, what: str) -> DamagedSessionError:
    """Return the error for a session whose content in Redis differs from what this service wrote."""
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
        raise damaged(session, f"the values of group {name!r} fail the check of their size and checksum")
    try:
        return prediction.checked(name, np.frombuffer(body, "<f8").reshape(rows, width))
    except ValuesError as error:
        raise damaged(session, str(error)) from error


def _stored_group(content: bytes, newest: int) -> StoredGroup:
    revision, again = _HEAD.unpack_from(content)
    if not 1 <= revision <= newest or again > 1:
        raise ValueError(f"revision {revision} of a session at revision {newest}")
    return StoredGroup(revision, bool(again), content[_HEAD.size :])


def _integer(content: bytes | None) -> int:
    """Read a non-negative integer in decimal digits, as used for revisions and numbers of rows."""
    if content is None or _DIGITS.fullmatch(content) is None or int(content) > _MAX_REVISION:
        raise ValueError(f"{_shown(content)}; expected an integer from 0 to {_MAX_REVISION}")
    return int(content)


def _shown(content: bytes | None) -> str:
    return "missing" if content is None else repr(content[:20].decode(errors="replace"))


def _checksum(session: str, name: str, content: bytes) -> int:
    """Return the checksum of values with their session and group, so that values of other groups do not pass."""
    return zlib.crc32(content, zlib.crc32(f"{session}/{name}".encode()))


MAX_KEPT = 8
"""Number of retained versions that are no longer served; the least recently used one is removed first."""


class ModelVersions:
    """The served models, and versions from before a reload for as long as this replica uses their sessions.

    Parameters
    ----------
    registry : returns the registry of the models that are served now.
    keep_s : time after the last use of its sessions for which a version is retained.
    max_rows : largest number of rows of a session.

    Attributes
    ----------
    bounds : largest possible sizes of sessions of the models.
    """

    def __init__(self, registry: Callable[[], ModelRegistry], keep_s: float, max_rows: int) -> None:
        self._registry = registry
        self._max_rows = max_rows
        self._keep_ms = keep_s * 1000.0
        self._seen = registry()
        self._kept: OrderedDict[tuple[str, str], tuple[Model, float]] = OrderedDict()
        self.bounds = self._bounded()

    def __len__(self) -> int:
        """Return the number of retained versions that are no longer served."""
        return len(self._kept)

    def find(self, name: str, version: str) -> Model:
        """Return a model in one version.

        Raises
        ------
        MissingVersionError
            This replica does not have the version.
        """
        self.notice()
        found = _found(self._seen, name, version)
        if found is not None:
            return found
        if (name, version) not in self._kept:
            raise MissingVersionError(
                f"the session began with model {name[:200]!r} in version {version[:40]!r}, which this replica does not "
                "have; use another replica, load that version here too, or begin a new session"
            )
        model, _ = self._kept.pop((name, version))
        self._kept[name, version] = model, now_ms()
        return model

    def notice(self) -> None:
        """Update the versions after a reload, and remove those that no session has used for `keep_s`."""
        here, now = self._registry(), now_ms()
        if here is not self._seen:
            for model in (model for versions in self._seen.models.values() for model in versions):
                if _found(here, model.name, model.version) is None:
                    self._kept[model.name, model.version] = model, now
            self._seen = here
            self.bounds = self._bounded()
        while self._kept:
            name, (_, used_ms) = next(iter(self._kept.items()))  # the least recently used first
            if len(self._kept) <= MAX_KEPT and now - used_ms <= self._keep_ms:
                break
            del self._kept[name]

    def _bounded(self) -> Bounds:
        return Bounds.of((*self._seen.every(), *(model for model, _ in self._kept.values())), self._max_rows)


def _found(registry: ModelRegistry, name: str, version: str) -> Model | None:
    return next((model for model in registry.models.get(name, ()) if model.version == version), None)
