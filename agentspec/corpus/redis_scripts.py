"""Lua scripts that a Redis or Valkey server runs for the corpus: atomic changes, and bounded reads.

Another program may have written to any key or field. So a script first checks types and lengths: when it
reads, a value of the wrong kind counts as missing; when it writes, the script replaces the value.

The hash of facts has: epoch, erasure (number of the last erasure of a stage or person), fence, bytes (of the
log), key (wrapped), snapshot and previous (ids of snapshots).
"""

from __future__ import annotations

_SHARED = """
local function number(text)  -- a whole number of 0 to 2^52, or nil
  local found = tonumber(text or '')
  if found and found >= 0 and found <= 4503599627370496 and found == math.floor(found) then return found end
end
local function is_a(key, type) return redis.call('TYPE', key).ok == type end
local function own(key, type)  -- remove what another program left under one of our names
  if not is_a(key, type) then redis.call('UNLINK', key) end
end
local function fact(facts, name)  -- a short value
  if not is_a(facts, 'hash') or redis.call('HSTRLEN', facts, name) > 4096 then return false end
  return redis.call('HGET', facts, name)
end
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function batch_of(entry)  -- of an entry that an engine wrote, or nil
  local fields = entry[2]
  if #fields == 2 and fields[1] == 'batch' then return fields[2] end
end
local function last_id(log)  -- the highest id that the stream ever had
  local info = redis.call('XINFO', 'STREAM', log)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end
local function bound()  -- ids behind it are no engine's: with the last possible one, nothing could be added
  return string.format('%d', now_ms() + 3600000)
end
local function is_exhausted(log)
  return tonumber(string.match(last_id(log), '^%d+')) >= tonumber(bound())
end
local function set_last_id(log, id)  -- so that ids go on rising
  if not is_a(log, 'stream') or last_id(log) ~= id then
    redis.call('XADD', log, id, 'batch', '')
    redis.call('XDEL', log, id)
  end
end
"""

# KEYS: log, facts. ARGV: batch, epoch or '', most bytes, most ms, wrapped key or '', '1' for an erasure
PUBLISH = (
    _SHARED
    + """
local log, facts = KEYS[1], KEYS[2]
local batch, epoch, most_bytes, most_ms, key = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if epoch ~= '' and tonumber(epoch) ~= (number(fact(facts, 'epoch')) or 0) then return 0 end
own(log, 'stream')
own(facts, 'hash')
if key ~= '' then
  local kept = fact(facts, 'key')
  if not kept then
    redis.call('HSET', facts, 'key', key)
  elseif string.sub(kept, 1, #key) ~= key then
    return 0
  end
end
if is_a(log, 'stream') and is_exhausted(log) then redis.call('UNLINK', log) end
local id = redis.call('XADD', log, '*', 'batch', batch)
local bytes = redis.call('XLEN', log) > 1 and number(fact(facts, 'bytes')) or 0
bytes = bytes + #batch
if ARGV[6] == '1' then
  local before = number(fact(facts, 'erasure')) or 0
  redis.call('HSET', facts, 'erasure', string.format('%d', math.max(before + 1, now_ms())))
end
local oldest_ms = now_ms() - most_ms
for _ = 1, 128 do  -- more is left to the next call: a script stops all clients
  local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local is_young = tonumber(string.match(first[1], '^%d+')) >= oldest_ms
  if first[1] == id or (bytes <= most_bytes and is_young) then break end
  redis.call('XDEL', log, first[1])
  bytes = math.max(0, bytes - #(batch_of(first) or ''))
end
redis.call('HSET', facts, 'bytes', string.format('%d', bytes))
redis.call('PEXPIRE', log, most_ms)
return 1
"""
)

# KEYS: log. ARGV: first id, most bytes, most bytes of a batch. Returns ids, each with its batch. A longer
# entry has its size in place of the batch, and an entry that no engine wrote has -1.
READ = (
    _SHARED
    + """
local log, first, most_bytes, longest = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local found, bytes = {}, 0
if not is_a(log, 'stream') then return found end
local last = bound()
for _ = 1, 64 do
  local entry = redis.call('XRANGE', log, first, last, 'COUNT', 1)[1]
  if not entry then break end
  local batch = batch_of(entry)
  local has_room = batch and #batch <= longest
  if has_room then bytes = bytes + #batch end
  if has_room and bytes > most_bytes and #found > 0 then break end
  found[#found + 1] = {entry[1], has_room and batch or (batch and #batch or -1)}
  first = '(' .. entry[1]
end
return found
"""
)

# KEYS: log
END = (
    _SHARED
    + """
if not is_a(KEYS[1], 'stream') then return false end
local newest = redis.call('XREVRANGE', KEYS[1], bound(), '-', 'COUNT', 1)[1]
return newest and newest[1]
"""
)

# KEYS: log, its copy. ARGV: last id copied, most bytes of a batch, then ids, each with '+' and a batch, or
# with '' to drop the entry. Copies the entries between these ids unchanged. Returns the last id copied, the
# number of ids processed, and the bytes.
COPY = (
    _SHARED
    + """
local log, copy, last, longest = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local done, bytes, steps = 0, 0, 0
if not is_a(log, 'stream') then return {last, (#ARGV - 2) / 2, 0} end
for i = 3, #ARGV, 2 do
  local id, is_there = ARGV[i], false
  while true do
    local entry = redis.call('XRANGE', log, '(' .. last, id, 'COUNT', 1)[1]
    if not entry then break end
    steps = steps + 1
    local batch = batch_of(entry)
    if entry[1] == id then batch = ARGV[i + 1] ~= '' and string.sub(ARGV[i + 1], 2) end
    if batch and #batch <= longest then
      redis.call('XADD', copy, entry[1], 'batch', batch)
      bytes = bytes + #batch
    end
    last = entry[1]
    if last == id or steps >= 256 or bytes >= 4194304 then break end
  end
  if steps >= 256 or bytes >= 4194304 then
    if last == id then done = done + 1 end
    break
  end
  done = done + 1
end
redis.call('PEXPIRE', copy, 600000)
return {last, done, bytes}
"""
)

# KEYS: log, its copy, facts. ARGV: fence or '', last id copied, bytes, most bytes of a batch. Copies the
# remaining entries, then renames the copy to the log. The server frees the old stream's memory as a whole.
# Returns the last id, the bytes, and 1 = done, 0 = entries remain, -1 = another fence is newer.
SWAP = (
    _SHARED
    + """
local log, copy, facts = KEYS[1], KEYS[2], KEYS[3]
local last, bytes, longest = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if ARGV[1] ~= '' and ARGV[1] ~= fact(facts, 'fence') then
  redis.call('UNLINK', copy)
  return {last, 0, -1}
end
own(facts, 'hash')
if not is_a(log, 'stream') then
  redis.call('UNLINK', log, copy)
  redis.call('HSET', facts, 'bytes', '0')
  return {last, 0, 1}
end
local copied, newest = 0, bound()
for _ = 1, 256 do
  local entry = redis.call('XRANGE', log, '(' .. last, newest, 'COUNT', 1)[1]
  if not entry then
    set_last_id(copy, is_exhausted(log) and last or last_id(log))
    local ttl = redis.call('PTTL', log)
    if ttl > 0 then redis.call('PEXPIRE', copy, ttl) else redis.call('PERSIST', copy) end
    redis.call('RENAME', copy, log)
    redis.call('HSET', facts, 'bytes', string.format('%d', bytes))
    return {last, bytes, 1}
  end
  local batch = batch_of(entry)
  if batch and #batch <= longest then
    redis.call('XADD', copy, entry[1], 'batch', batch)
    bytes, copied = bytes + #batch, copied + #batch
  end
  last = entry[1]
  if copied >= 4194304 then break end
end
redis.call('PEXPIRE', copy, 600000)
return {last, bytes, 0}
"""
)

# KEYS: facts. ARGV: prefix of snapshots
DROP_PREVIOUS = (
    _SHARED
    + """
local previous = fact(KEYS[1], 'previous')
if previous then redis.call('UNLINK', ARGV[1] .. previous) end
if is_a(KEYS[1], 'hash') then redis.call('HDEL', KEYS[1], 'previous') end
"""
)

# KEYS: facts, lease. ARGV: holder, ms, most ms of a lease
LEASE = (
    _SHARED
    + """
local facts, lease = KEYS[1], KEYS[2]
own(facts, 'hash')
own(lease, 'string')
local left_ms = redis.call('PTTL', lease)
if left_ms > 0 and left_ms <= tonumber(ARGV[3]) and redis.call('GET', lease) ~= ARGV[1] then return false end
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
local fence = (number(fact(facts, 'fence')) or now_ms()) + 1
redis.call('HSET', facts, 'fence', string.format('%d', fence))
return fence
"""
)

# KEYS: facts. ARGV: prefix of snapshots, id, fence, most ms, cursor, parts, bytes
PUT_SNAPSHOT = (
    _SHARED
    + """
local facts, prefix, id, fence, most_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local cursor, parts, bytes = ARGV[5], ARGV[6], ARGV[7]
if fence ~= fact(facts, 'fence') then return 0 end
if redis.call('HLEN', prefix .. id) ~= tonumber(parts) then return 0 end  -- it took too long
redis.call('HSET', prefix .. id, 'cursor', cursor, 'parts', parts, 'bytes', bytes,
  'minute', math.floor(now_ms() / 60000))
redis.call('PEXPIRE', prefix .. id, most_ms)
local previous = fact(facts, 'previous')
if previous then redis.call('UNLINK', prefix .. previous) end
local current = fact(facts, 'snapshot')
if current then redis.call('HSET', facts, 'previous', current) end
redis.call('HSET', facts, 'snapshot', id)
return 1
"""
)

# KEYS: facts, log. ARGV: prefix of snapshots. Returns id, cursor, parts and the newest time of an entry
SNAPSHOT = (
    _SHARED
    + """
local id = fact(KEYS[1], 'snapshot')
if not id then return false end
local newest_ms = now_ms()
if is_a(KEYS[2], 'stream') then
  local last_ms = tonumber(string.match(last_id(KEYS[2]), '^%d+'))
  newest_ms = math.max(newest_ms, math.min(tonumber(bound()), last_ms))
end
local key = ARGV[1] .. id
return {id, fact(key, 'cursor') or '', fact(key, 'parts') or '', string.format('%d', newest_ms)}
"""
)

# KEYS: a snapshot. ARGV: number, most bytes. Returns a part, or its size if it is longer
PART = """
local key, number, longest = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('TYPE', key).ok ~= 'hash' then return false end
local size = redis.call('HSTRLEN', key, number)
if size > longest then return size end
return redis.call('HGET', key, number)
"""

# KEYS: log, facts, lease. ARGV: prefix of snapshots, least epoch or 0
ERASE = (
    _SHARED
    + """
local log, facts, lease, prefix, least = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local before, fence = number(fact(facts, 'epoch')) or 0, number(fact(facts, 'fence')) or now_ms()
if least > 0 and before >= least then return before end
local erasure = number(fact(facts, 'erasure')) or 0
for _, name in ipairs({'snapshot', 'previous'}) do
  local id = fact(facts, name)
  if id then redis.call('UNLINK', prefix .. id) end
end
local id = is_a(log, 'stream') and last_id(log)
redis.call('UNLINK', log, facts, lease)
if id and id ~= '0-0' and tonumber(string.match(id, '^%d+')) < tonumber(bound()) then set_last_id(log, id) end
local epoch = least > 0 and least or math.max(before + 1, math.floor(now_ms() / 1000))
redis.call('HSET', facts, 'epoch', string.format('%d', epoch), 'fence', string.format('%d', fence + 1),
  'erasure', string.format('%d', erasure))
return epoch
"""
)

# KEYS: log, facts, lease. ARGV: prefix of snapshots. For a server that has no memory left for ERASE
DROP = (
    _SHARED
    + """
for _, name in ipairs({'snapshot', 'previous'}) do
  local id = fact(KEYS[2], name)
  if id then redis.call('UNLINK', ARGV[1] .. id) end
end
redis.call('UNLINK', KEYS[1], KEYS[3])
"""
)

# KEYS: facts, log, lease. Returns both numbers, and the names of values that no engine wrote
MARKS = (
    _SHARED
    + """
local facts = KEYS[1]
local foreign = {}
for i, type in ipairs({'hash', 'stream', 'string'}) do
  if not is_a(KEYS[i], type) and not is_a(KEYS[i], 'none') then foreign[#foreign + 1] = KEYS[i] end
end
if is_a(KEYS[2], 'stream') and is_exhausted(KEYS[2]) then foreign[#foreign + 1] = KEYS[2] end
if is_a(facts, 'hash') then
  for _, name in ipairs({'epoch', 'erasure', 'fence', 'bytes'}) do
    if redis.call('HEXISTS', facts, name) == 1 and not number(fact(facts, name)) then
      foreign[#foreign + 1] = facts .. ' ' .. name
    end
  end
end
local epoch, erasure = number(fact(facts, 'epoch')), number(fact(facts, 'erasure'))
return {string.format('%d', epoch or 0), string.format('%d', erasure or 0), foreign}
"""
)

# KEYS: facts. ARGV: number
MARK = (
    _SHARED
    + """
own(KEYS[1], 'hash')
local before = number(fact(KEYS[1], 'erasure')) or 0
redis.call('HSET', KEYS[1], 'erasure', string.format('%d', math.max(before, tonumber(ARGV[1]))))
"""
)

# KEYS: facts. ARGV: a candidate, or nothing
KEY = (
    _SHARED
    + """
local kept = fact(KEYS[1], 'key')
if kept or #ARGV == 0 then return kept end
own(KEYS[1], 'hash')
redis.call('HSET', KEYS[1], 'key', ARGV[1])
return ARGV[1]
"""
)

# KEYS: facts. ARGV: the present key, the new key
REPLACE_KEY = (
    _SHARED
    + """
if fact(KEYS[1], 'key') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'key', ARGV[2])
return 1
"""
)

# KEYS: log, facts. ARGV: prefix of snapshots
STATS = (
    _SHARED
    + """
local log, facts, prefix = KEYS[1], KEYS[2], ARGV[1]
local entries, bytes, oldest, snapshots, written = 0, 0, 0, 0, 0
local first = is_a(log, 'stream') and redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
if first then
  entries, bytes = redis.call('XLEN', log), number(fact(facts, 'bytes')) or 0
  oldest = math.floor(tonumber(string.match(first[1], '^%d+')) / 60000)
end
for _, name in ipairs({'previous', 'snapshot'}) do
  local id = fact(facts, name)
  if id then
    snapshots = snapshots + (number(fact(prefix .. id, 'bytes')) or 0)
    written = number(fact(prefix .. id, 'minute')) or 0
  end
end
return {entries, bytes, snapshots, oldest, written}
"""
)

# KEYS: the set of scopes. ARGV: a scope
ADD_SCOPE = (
    _SHARED
    + """
own(KEYS[1], 'set')
redis.call('SADD', KEYS[1], ARGV[1])
"""
)

# KEYS: the set of scopes. ARGV: most bytes of a name. Returns the names, and the number of invalid members
SCOPES = (
    _SHARED
    + """
local found, foreign = {}, 0
if not is_a(KEYS[1], 'set') then return {found, is_a(KEYS[1], 'none') and 0 or 1} end
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if #name <= tonumber(ARGV[1]) then found[#found + 1] = name else foreign = foreign + 1 end
end
return {found, foreign}
"""
)
