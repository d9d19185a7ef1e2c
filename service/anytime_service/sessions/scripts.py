"""Lua scripts: each reads, validates and changes a session in Redis atomically, by the clock of Redis.

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

The hash of a session expires by itself. Its id stays in `sessions` until the next sweep moves it to `ended`. This
distinguishes an expired session from one that never existed, without a third key per session. Sweeps are part of the
check that every replica makes once a second; expired sessions that are not swept yet are not counted.

A group is stored as `<revision><sent again>` (4 bytes each), followed by the content that `packing` packs. The script
that reads a session also registers the waiting replica, and a post is published to the registered replicas. So no post
gets lost between reading and waiting, no session needs a subscription of its own, and no message is sent without
waiting predictions. A message consists of pieces, each after its length (4 bytes): revision, id, then name and packed
values of each group; revision 0 means that the session has ended. Replies with many parts use the same pieces, since
the client library is slow for each part of a reply.

Other programs may write to the same Redis server, so scripts validate what they read: `integer` accepts only decimal
digits, and `fits` rejects a hash with too many fields or bytes before it is sent to a replica. A script validates
before its first change.

A Redis server that is out of memory refuses commands that may use more memory, but only as the first change of a
script. The scripts that begin a session or add groups start with such a command, so they are refused completely. The
scripts that read a session start with `PEXPIRE`, which is never refused, so they are executed completely.
"""

from __future__ import annotations

__all__ = [
    "ADD_GROUPS",
    "CHECK",
    "CREATE",
    "DELETE",
    "DESCRIBE",
    "ENDED_KEY",
    "FORMAT",
    "READ",
    "SESSIONS_KEY",
    "keys_of",
]

FORMAT = "1"
"""Version of the format."""

SESSIONS_KEY = "anytime:sessions"
ENDED_KEY = "anytime:ended"

_BASE = """
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
"""

_ONE = (
    _BASE
    + """
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
)

CREATE = (
    _BASE
    + """
local session, sessions = KEYS[1], KEYS[3]
local id, ttl, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local moment = now()
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
    _ONE
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
    _ONE
    + """
local rows, fields, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('EXISTS', session) == 0 then return missing() end
local found = redis.call('HMGET', session, 'revision', 'rows')
local revision, known = integer(found[1]), integer(found[2])
if not revision or not known or revision >= 4294967295 then return {'damaged'} end
if not fits(redis.call('HKEYS', session), fields, bytes) then return {'damaged'} end
if rows > 0 and known > 0 and rows ~= known then return {'rows', found[2]} end
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
    _ONE
    + """
local found = redis.call('HGETALL', session)
if #found == 0 then return missing() end
if not fits(found, 2 * tonumber(ARGV[5]), tonumber(ARGV[6])) then return {'large'} end
local wait = tonumber(ARGV[3])
used(math.max(ttl, wait))
if wait > 0 then
  local till = math.max(now() + wait, integer(redis.call('HGET', waiting, ARGV[4])) or 0)
  redis.call('HSET', waiting, ARGV[4], number(till))
  redis.call('PEXPIRE', waiting, number(math.max(wait, redis.call('PTTL', waiting))))
end
return {'ok', pieces(found)}
"""
)
"""Return a complete session and register the waiting replica. Arguments: id, ttl, wait in ms (0: no prediction waits),
replica, largest numbers of fields and bytes."""

DELETE = (
    _ONE
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
    _BASE
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


def keys_of(name: str) -> tuple[str, str, str, str]:
    """Return the keys for the scripts that work on one session."""
    return f"anytime:session:{{{name}}}", f"anytime:waiting:{{{name}}}", SESSIONS_KEY, ENDED_KEY
