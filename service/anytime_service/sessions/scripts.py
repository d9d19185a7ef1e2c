"""What Redis does in one step, as scripts: each is found, checked and changed as a whole, by Redis' own clock.

======================== ============ ======================================================================
key                      kind         what it has
======================== ============ ======================================================================
anytime:session:{id}     hash         `format`, `name` and `version` of the model, `rows` (0: not known yet),
                                      `revision` (counts the posts), `owner` (the key that began it, as
                                      `Account.owner`; absent without one), and `g:NAME` for each group that came
anytime:waiting:{id}     hash         replicas on which somebody waits: name, and until when
anytime:sessions         sorted set   sessions by when they expire; some have expired already
anytime:sessions:{owner} sorted set   those of one key, by when they expire
anytime:ended            sorted set   the last that have ended, by when
======================== ============ ======================================================================

The hash of a session expires by itself. Its id stays among `sessions` until the next sweep makes it one of `ended`, so
one that has expired is told from one that never was without a third key for each. Sweeps are part of the check that
every replica makes once a second; what has expired is not counted meanwhile.

A group is kept as `<revision><came again>` (4 bytes each), before what `packing` packs. Whoever waits for a session is
written down in the same step that reads it, and a post is sent to those written down, so nothing comes between: no
subscription for each session, and nothing is sent where nobody waits. A message is pieces, each after its length (4
bytes): revision, id, then name and what is packed of each group; revision 0 says that the session has ended. Replies
with many parts are such pieces too, since the client takes long for each part of a reply.

Other programs may write to the same Redis, so scripts check what they read: `whole` accepts a number only if it is
written in digits, and `fit` keeps a hash with too many fields or bytes from being sent to a replica. A script checks
before its first change.

A Redis that is out of memory refuses commands that may take more of it, but only as the first change of a script. What
begins a session or takes groups has such a command first, so it is refused as a whole; what tells of a session has
`PEXPIRE` first, which is never refused, so it is done as a whole.
"""

from __future__ import annotations

__all__ = ["CHECK", "CREATE", "DELETE", "DESCRIBE", "ENDED_KEY", "FORMAT", "READ", "SESSIONS_KEY", "TAKE", "keys_of"]

FORMAT = "1"
"""Version of all this."""

SESSIONS_KEY = "anytime:sessions"
ENDED_KEY = "anytime:ended"

_BASE = """
local function now()
  local told = redis.call('TIME')
  return told[1] * 1000 + math.floor(told[2] / 1000)
end
local function number(value) return string.format('%.0f', value) end
local function whole(text)
  if text and #text <= 15 and string.match(text, '^%d+$') then return tonumber(text) end
end
local function fit(values, count, bytes)
  local size = 0
  for i = 1, #values do size = size + #(values[i] or '') end
  return #values <= count and size <= bytes
end
local function pieces(values, first)
  local parts = {}
  for i = first or 1, #values do parts[#parts + 1] = struct.pack('<I4', #values[i]) .. values[i] end
  return table.concat(parts)
end
local function own(set, id, moment, left)
  if type(redis.pcall('ZADD', set, number(moment + left), id)) == 'table' then  -- an error: it is of another kind
    redis.call('DEL', set)
    redis.call('ZADD', set, number(moment + left), id)
  end
  redis.call('PEXPIRE', set, number(math.max(redis.call('PTTL', set), left)))
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
  local left = math.max(redis.call('PTTL', session), least)
  redis.call('PEXPIRE', session, number(left))
  redis.call('ZADD', sessions, number(now() + left), id)
  local set = owned()
  if set then own(set, id, now(), left) end
end
local function publish(those, revision, first)
  if #those == 0 then return end
  local message = pieces({number(revision), id}) .. pieces(ARGV, first)
  local moment = now()
  for i = 1, #those, 2 do
    local till = whole(those[i + 1])
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
  if type(those) == 'table' then those = 0 end  -- an error: it is of another kind, and `own` begins it anew
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
"""Begin a session, unless there are `most`, or the key has its share. Arguments: id, ttl, most, format, name, version,
rows, owner (empty without a key), share."""

DESCRIBE = (
    _ONE
    + """
if redis.call('EXISTS', session) == 0 then return missing() end
local found = redis.call('HMGET', session, 'format', 'name', 'version', 'rows')
if not fit(found, 4, tonumber(ARGV[3])) then return {'damaged'} end
used(ttl)
return {'ok', unpack(found, 1, 4)}
"""
)
"""Return format, name, version and rows of a session. Arguments: id, ttl, bytes that they may have."""

TAKE = (
    _ONE
    + """
local rows, fields, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('EXISTS', session) == 0 then return missing() end
local found = redis.call('HMGET', session, 'revision', 'rows')
local revision, known = whole(found[1]), whole(found[2])
if not revision or not known or revision >= 4294967295 then return {'damaged'} end
if not fit(redis.call('HKEYS', session), fields, bytes) then return {'damaged'} end
if rows > 0 and known > 0 and rows ~= known then return {'rows', found[2]} end
local again = {}
if #ARGV > 5 then
  local those = redis.call('HGETALL', waiting)
  revision = revision + 1
  redis.call('HSET', session, 'revision', number(revision), 'rows', rows)
  for i = 6, #ARGV, 2 do
    local name = 'g:' .. ARGV[i]
    local came = redis.call('HEXISTS', session, name)
    if came == 1 then again[#again + 1] = ARGV[i] end
    redis.call('HSET', session, name, struct.pack('<I4I4', revision, came) .. ARGV[i + 1])
  end
  publish(those, revision, 6)
end
used(ttl)
return {'ok', pieces(again), pieces(redis.call('HKEYS', session))}
"""
)
"""Accept groups, all or none. Arguments: id, ttl, rows (0 without groups), most fields, most bytes, name and values of
each group."""

READ = (
    _ONE
    + """
local found = redis.call('HGETALL', session)
if #found == 0 then return missing() end
if not fit(found, 2 * tonumber(ARGV[5]), tonumber(ARGV[6])) then return {'large'} end
local wait = tonumber(ARGV[3])
used(math.max(ttl, wait))
if wait > 0 then
  local till = math.max(now() + wait, whole(redis.call('HGET', waiting, ARGV[4])) or 0)
  redis.call('HSET', waiting, ARGV[4], number(till))
  redis.call('PEXPIRE', waiting, number(math.max(wait, redis.call('PTTL', waiting))))
end
return {'ok', pieces(found)}
"""
)
"""Return all of a session, and note which replica waits for it. Arguments: id, ttl, wait (0: nobody waits), replica,
most fields, most bytes."""

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
"""Sweep, and tell how many sessions there are; always a change, which a Redis that cannot change anything refuses."""


def keys_of(name: str) -> tuple[str, str, str, str]:
    """Keys that the scripts about one session take."""
    return f"anytime:session:{{{name}}}", f"anytime:waiting:{{{name}}}", SESSIONS_KEY, ENDED_KEY
