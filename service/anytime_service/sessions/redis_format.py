"""Sessions in Redis: the stored data, the messages, and the Lua scripts that change a session atomically.

======================== ============ ======================================================================
key                      type         content
======================== ============ ======================================================================
anytime:session:{id}     hash         `format`, `name` and `version` of the model, `rows` (0: not known yet),
                                      `revision` (counts the posts), `owner` (the key that began it, as
                                      `Account.owner`; absent without one), and `g:NAME` for each stored group
anytime:waiting:{id}     hash         replicas with waiting predictions: name, and the time until they wait
anytime:sessions         sorted set   sessions by expiry time; may contain expired ones
anytime:sessions:{owner} sorted set   sessions of one key, by expiry time
anytime:ended            sorted set   recently ended sessions, by the time of their end
======================== ============ ======================================================================

The hash of a session expires by itself, by the clock of Redis. Its id stays in `sessions` until the next sweep moves it
to `ended`. This distinguishes an expired session from one that never existed, without a third key per session. Sweeps
are part of the check that every replica makes once a second; expired sessions that are not swept yet are not counted.

A group is stored as `<revision><sent again>` (4 bytes each), followed by its packed values: checksum, rows (4 bytes
each) and little-endian numbers. The script that reads a session also registers the waiting replica, and a post is
published to the registered replicas. So no post gets lost between reading and waiting, no session needs a subscription
of its own, and no message is sent without waiting predictions. A message consists of pieces, each after its length (4
bytes): revision, id, then name and packed values of each group; revision 0 means that the session has ended. Replies
with many parts use the same pieces, since the client library is slow for each part of a reply. A stream for each
replica (XADD, XREAD) instead of publishing took as many lines, and answered in 2.4 to 2.9 ms instead of 1.6 to 2.1.

Other programs may write to the same Redis server. Therefore all data read from it are validated like data of clients:
sizes, names, numbers of rows, revisions and values. Damaged data are an error of the session and never reach an answer;
a message that this service did not send is ignored.
Scripts validate what they read before their first change: `integer` accepts only decimal digits, and `fits` rejects a
hash with too many fields or bytes before it is sent to a replica.

A Redis server that is out of memory refuses commands that may use more memory, but only as the first change of a
script. The scripts that begin a session or add groups start with such a command, so they are refused completely. The
scripts that read a session start with `PEXPIRE`, which is never refused, so they are executed completely.
"""

from __future__ import annotations

import logging
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Float
from anytime_service.errors import DamagedSessionError

_log = logging.getLogger("anytime_service")

FORMAT = "1"  # version of the format
SESSIONS_KEY = "anytime:sessions"
ENDED_KEY = "anytime:ended"


def keys_of(name: str) -> tuple[str, str, str, str]:
    return f"anytime:session:{{{name}}}", f"anytime:waiting:{{{name}}}", SESSIONS_KEY, ENDED_KEY


_COMMON = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function number(value) return string.format('%.0f', value) end
local function integer(text)
  if text and #text <= 15 and string.match(text, '^%d+$') then return tonumber(text) end
end
local function fits(values, count, bytes)
  local size = 0
  for i = 1, #values do size = size + #(values[i] or '') end
  return #values <= count and size <= bytes
end
local function pieces(values, first)
  local parts = {}
  for i = first or 1, #values do parts[#parts + 1] = struct.pack('<I4', #values[i]) .. values[i] end
  return table.concat(parts)
end
local function own(set, id, moment, remaining)
  if type(redis.pcall('ZADD', set, number(moment + remaining), id)) == 'table' then  -- an error: another type
    redis.call('DEL', set)
    redis.call('ZADD', set, number(moment + remaining), id)
  end
  redis.call('PEXPIRE', set, number(math.max(redis.call('PTTL', set), remaining)))
end
local function remember(ended, id, when)
  redis.call('ZADD', ended, number(when), id)
  redis.call('ZREMRANGEBYRANK', ended, 0, -100001)
  redis.call('PEXPIRE', ended, 86400000)
end
local session, waiting, sessions, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, ttl = ARGV[1], tonumber(ARGV[2])
local function missing()
  if redis.call('ZSCORE', sessions, id) or redis.call('ZSCORE', ended, id) then return {'gone'} end
  return {'unknown'}
end
local function owned()
  local owner = redis.call('HGET', session, 'owner')
  if owner and #owner == 16 and string.match(owner, '^%x+$') then return sessions .. ':' .. owner end
end
local function used(least)
  local remaining = math.max(redis.call('PTTL', session), least)
  redis.call('PEXPIRE', session, number(remaining))
  redis.call('ZADD', sessions, number(now() + remaining), id)
  local set = owned()
  if set then own(set, id, now(), remaining) end
end
local function publish(those, revision, first)
  if #those == 0 then return end
  local message = pieces({number(revision), id}) .. pieces(ARGV, first)
  local moment = now()
  for i = 1, #those, 2 do
    local till = integer(those[i + 1])
    if till and till < moment then redis.call('HDEL', waiting, those[i])
    else redis.call('PUBLISH', 'anytime:replica:' .. those[i], message) end
  end
end
"""


CREATE = (
    _COMMON
    + """
local most, moment = tonumber(ARGV[3]), now()
local count = redis.call('ZCOUNT', sessions, '(' .. number(moment), '+inf')
if count >= most then return {'full', count} end
local owner, set = ARGV[8], sessions .. ':' .. ARGV[8]
if owner ~= '' then
  local those = redis.pcall('ZCOUNT', set, '(' .. number(moment), '+inf')
  if type(those) == 'table' then those = 0 end  -- an error: the key has another type, and `own` creates it again
  if those >= tonumber(ARGV[9]) then return {'share', count, those} end
end
redis.call('HSET', session, 'format', ARGV[4], 'name', ARGV[5], 'version', ARGV[6], 'rows', ARGV[7], 'revision', 0)
redis.call('PEXPIRE', session, ARGV[2])
redis.call('ZADD', sessions, number(moment + ttl), id)
if owner ~= '' then
  redis.call('HSET', session, 'owner', owner)
  own(set, id, moment, ttl)
  local expired = redis.call('ZRANGEBYSCORE', set, '-inf', number(moment), 'LIMIT', 0, 1000)
  if #expired > 0 then redis.call('ZREM', set, unpack(expired)) end
end
return {'ok', count + 1}
"""
)
"""Begin a session, unless the limit of sessions or the key's share is reached. Arguments: id, ttl, limit, format, name,
version, rows, owner (empty without a key), share."""

DESCRIBE = (
    _COMMON
    + """
if redis.call('EXISTS', session) == 0 then return missing() end
local found = redis.call('HMGET', session, 'format', 'name', 'version', 'rows')
if not fits(found, 4, tonumber(ARGV[3])) then return {'damaged'} end
used(ttl)
return {'ok', unpack(found, 1, 4)}
"""
)
"""Return format, name, version and rows of a session. Arguments: id, ttl, their largest size in bytes."""

ADD_GROUPS = (
    _COMMON
    + """
local rows, fields, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('EXISTS', session) == 0 then return missing() end
local found = redis.call('HMGET', session, 'revision', 'rows')
local revision, known = integer(found[1]), integer(found[2])
if not revision or not known or revision >= 4294967295 then return {'damaged'} end
if not fits(redis.call('HKEYS', session), fields, bytes) then return {'damaged'} end
if rows > 0 and known > 0 and rows ~= known then return {'rows', found[2]} end
local size, sent = 0, {}
for i = 6, #ARGV, 2 do
  sent['g:' .. ARGV[i]] = true
  size = size + #ARGV[i] + #ARGV[i + 1] + 10
end
for _, name in ipairs(redis.call('HKEYS', session)) do
  if not sent[name] then size = size + #name + redis.call('HSTRLEN', session, name) end
end
if size > bytes then return {'large', number(size)} end
local replaced = {}
if #ARGV > 5 then
  local those = redis.call('HGETALL', waiting)
  revision = revision + 1
  redis.call('HSET', session, 'revision', number(revision), 'rows', rows)
  for i = 6, #ARGV, 2 do
    local name = 'g:' .. ARGV[i]
    local existed = redis.call('HEXISTS', session, name)
    if existed == 1 then replaced[#replaced + 1] = ARGV[i] end
    redis.call('HSET', session, name, struct.pack('<I4I4', revision, existed) .. ARGV[i + 1])
  end
  publish(those, revision, 6)
end
used(ttl)
return {'ok', pieces(replaced), pieces(redis.call('HKEYS', session))}
"""
)
"""Add groups, all or none. Arguments: id, ttl, rows (0 without groups), largest numbers of fields and bytes, and name
and values of each group."""

READ = (
    _COMMON
    + """
local count, size = redis.call('HLEN', session), 0
if count == 0 then return missing() end
if count > tonumber(ARGV[5]) then return {'large'} end
for _, name in ipairs(redis.call('HKEYS', session)) do
  size = size + #name + redis.call('HSTRLEN', session, name)
end
if size > tonumber(ARGV[6]) then return {'large'} end
local wait = tonumber(ARGV[3])
used(math.max(ttl, wait))
if wait > 0 then
  local till = math.max(now() + wait, integer(redis.call('HGET', waiting, ARGV[4])) or 0)
  redis.call('HSET', waiting, ARGV[4], number(till))
  redis.call('PEXPIRE', waiting, number(math.max(wait, redis.call('PTTL', waiting))))
end
if size > 65536 then return {'apart'} end  -- a script copies values five times, and Redis serves nobody meanwhile
return {'ok', pieces(redis.call('HGETALL', session))}
"""
)
"""Return a session and register the waiting replica; one of many bytes is read by a command of its own. Arguments: id,
ttl, wait in ms (0: no prediction waits), replica, largest numbers of fields and bytes."""

DELETE = (
    _COMMON
    + """
if redis.call('EXISTS', session) == 0 then return missing() end
local those = redis.pcall('HGETALL', waiting)
publish(those.err and {} or those, 0, #ARGV + 1)
local set = owned()
redis.call('DEL', session, waiting)
redis.call('ZREM', sessions, id)
if set then redis.call('ZREM', set, id) end
remember(ended, id, now())
return {'ok'}
"""
)
"""End a session. Arguments: id, ttl."""

CHECK = (
    _COMMON
    + """
local sessions, ended, moment = KEYS[1], KEYS[2], now()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', sessions, '-inf', number(moment), 'LIMIT', 0, 1000)) do
  redis.call('ZREM', sessions, id)
  remember(ended, id, moment)
end
redis.call('ZREMRANGEBYRANK', ended, 0, -100001)
return redis.call('ZCARD', sessions)
"""
)
"""Sweep and return the number of sessions. The script always writes, so a read-only Redis server refuses it."""

_HEAD = struct.Struct("<II")  # of packed values: checksum, rows; of a stored group: revision, sent again
_DIGITS = re.compile(rb"[0-9]{1,15}")
_MAX_REVISION = 2**32 - 1
_FIELDS = 6  # largest number of fields of a session that are not groups


class Bounds(NamedTuple):
    """Largest sizes of a session: rows, fields of its hash, and bytes of all fields."""

    rows: int
    fields: int
    size: int

    @classmethod
    def of(cls, models: Iterable[Model], rows: int, readable: float = math.inf) -> Bounds:
        """Return the largest sizes of sessions of some models; at most `readable` bytes are read in time."""
        fields, size = 0, 0
        for model in models:
            names = sum(len(name.encode()) for name in model.places)
            fields = max(fields, len(model.places))
            values = 8 * rows * sum(len(place.features) for place in model.places.values())
            size = max(size, names + values + len(model.name.encode()))
        return cls(rows, _FIELDS + fields, int(min(size + 64 * (_FIELDS + fields) + 1024, readable)))


class SessionInfo(NamedTuple):
    """Constant properties of a session: its model, and its number of rows; None until they are known."""

    name: str
    version: str
    rows: int | None


class StoredGroup(NamedTuple):
    """A group in a session: the revision that added it, whether it was sent again, and its packed values."""

    revision: int
    again: bool
    content: bytes


class Snapshot(NamedTuple):
    """Complete content of a session."""

    info: SessionInfo
    revision: int
    groups: Mapping[str, StoredGroup]


def pack_values(session: str, name: str, array: Float) -> bytes:
    """Pack the values of a group, shape (rows, features), with NaN for missing values."""
    content = array.astype("<f8", copy=False).tobytes()
    return _HEAD.pack(_checksum(session, name, content), len(array)) + content


def unpack_values(session: str, prediction: Prediction, groups: Mapping[str, bytes], max_rows: int) -> dict[str, Float]:
    """Return values of groups as `Prediction.add_checked` accepts them; raises DamagedSessionError."""
    arrays = {name: _unpack(session, prediction, name, content, max_rows) for name, content in groups.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        raise damaged(session, "its groups have different numbers of rows")
    return arrays


def read_info(session: str, fields: Sequence[bytes | None], max_rows: int) -> SessionInfo:
    """Read format, name, version and rows of a session; a missing field is None. Raises DamagedSessionError."""
    form, name, version, rows = fields
    if form != FORMAT.encode():
        raise damaged(session, f"its format is {(form or b'missing')[:10].decode(errors='replace')}; expected {FORMAT}")
    try:
        model, number = (name or b"\xff").decode(), (version or b"").decode()
    except UnicodeDecodeError as error:
        raise damaged(session, "the name or version of its model is missing or not UTF-8") from error
    return SessionInfo(model, number, read_rows(session, rows, max_rows))


def read_rows(session: str, content: bytes | None, max_rows: int) -> int | None:
    """Read a number of rows; return None for 0, which means not known yet; raises DamagedSessionError."""
    try:
        return _integer(content, max_rows) or None
    except ValueError as error:
        raise damaged(session, f"its number of rows is {error}") from error


def pieces(content: bytes, limit: int) -> list[bytes]:
    """Split joined pieces, each after its length; raise ValueError for another format or more than `limit` pieces."""
    found: list[bytes] = []
    at, end = 0, len(content)
    while at + 4 <= end and len(found) < limit:
        length = int.from_bytes(content[at : at + 4], "little")
        at += 4 + length
        found.append(content[at - length : at])
    if at != end:
        raise ValueError(f"{len(content)} bytes; expected at most {limit} pieces, each after its length")
    return found


def read_snapshot(session: str, content: bytes | Mapping[bytes, bytes], bounds: Bounds) -> Snapshot:
    """Read the hash of a session, or pieces (alternating names and values) of it; raises DamagedSessionError."""
    try:
        if isinstance(content, bytes):
            fields = pieces(content, 2 * bounds.fields)
            values: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
        else:
            values = content
        revision = _integer(values.get(b"revision"))
        groups = {
            name[2:].decode(): _stored_group(content, revision)
            for name, content in values.items()
            if name.startswith(b"g:")
        }
    except (ValueError, struct.error) as error:
        raise damaged(session, "its fields are not those of a session") from error
    info = read_info(session, [values.get(name) for name in (b"format", b"name", b"version", b"rows")], bounds.rows)
    if groups and info.rows is None:
        raise damaged(session, f"it has {len(groups)} groups of 0 rows")
    return Snapshot(info, revision, groups)


def read_message(content: bytes, bounds: Bounds) -> tuple[str, int, dict[str, bytes]]:
    """Return session id, revision (0: the session has ended) and packed groups of a message.

    Raise DamagedSessionError if this service did not send it.
    """
    try:
        revision, session, *groups = pieces(content, 2 * bounds.fields)
        pairs = zip(groups[::2], groups[1::2], strict=True)
        return session.decode(), _integer(revision), {name.decode(): each for name, each in pairs}
    except ValueError as error:
        what = f"a message that this service did not send ({str(error)[:100]})"
        raise reported(f"received {what}; it was ignored") from error


def damaged(session: str, what: str) -> DamagedSessionError:
    """Log and return the error for a session whose content in Redis differs from what this service wrote."""
    return reported(f"session {session[:64]!r} is damaged in Redis: {what}; begin another session by POST /sessions")


def reported(message: str) -> DamagedSessionError:
    """Log and return an error about stored data."""
    _log.warning("%s", message)
    return DamagedSessionError(message)


def _unpack(session: str, prediction: Prediction, name: str, content: bytes, max_rows: int) -> Float:
    place = prediction.model.places.get(name)
    if place is None:
        raise damaged(session, f"it has a group {name[:64]!r}, which its model does not have")
    width = len(place.features)
    check, rows = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (0, 0)
    body = content[_HEAD.size :]
    if not 1 <= rows <= max_rows or len(body) != rows * width * 8 or check != _checksum(session, name, body):
        raise damaged(session, f"the values of group {name!r} fail the check of their size and checksum")
    try:
        return prediction.checked(name, np.frombuffer(body, "<f8").reshape(rows, width), coded=True)
    except ValuesError as error:
        raise damaged(session, str(error)) from error


def _stored_group(content: bytes, newest: int) -> StoredGroup:
    revision, again = _HEAD.unpack_from(content)
    if not 1 <= revision <= newest or again > 1:
        raise ValueError(f"revision {revision} of a session at revision {newest}")
    return StoredGroup(revision, bool(again), content[_HEAD.size :])


def _integer(content: bytes | None, most: int = _MAX_REVISION) -> int:
    """Read a non-negative integer in decimal digits, as used for revisions and numbers of rows."""
    if content is None or _DIGITS.fullmatch(content) is None or int(content) > most:
        shown = (content or b"missing")[:20].decode(errors="replace")
        raise ValueError(f"{shown!r}; expected an integer from 0 to {most}")
    return int(content)


def _checksum(session: str, name: str, content: bytes) -> int:
    """Return the checksum of values with their session and group, so that values of other groups do not pass."""
    return zlib.crc32(content, zlib.crc32(f"{session}/{name}".encode()))
