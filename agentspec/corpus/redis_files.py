"""Removes erased data from the files of a Redis or Valkey server: its dump and its append-only file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from agentspec.extras import needed

with needed("corpus"):
    import redis

_POLL_S = 0.05
_MARK = "agentspec:corpus:settled"
_CALL_S = 1.0  # time-out of one command; the client's own is longer
_OTHERS = "run BGSAVE, and BGREWRITEAOF if the server has an append-only file, as its administrator"


class _NotPermittedError(Exception):
    """The user may not run a command, or the server does not have this command."""


def settle(client: Any, timeout_s: float) -> list[str]:
    """Have the server write its dump and its append-only file again without the erased data, and wait.

    Args:
        client: a client of redis-py.
        timeout_s: longest wait, in seconds.

    Returns:
        One sentence for each file that could not be rewritten or confirmed.

    Raises:
        redis.RedisError: the server can't be reached.
    """
    try:
        with client.client() as one:  # on one connection: WAIT and WAITAOF wait for its own writes
            one.set(_MARK, 1, px=1000)
            return _settle(one, time.monotonic() + timeout_s)
    except _NotPermittedError as error:
        return [
            f"the server did not say what its files hold ({error}): after a crash they may bring back what "
            f"was erased; {_OTHERS}"
        ]


def _settle(client: Any, deadline_s: float) -> list[str]:
    before = _persistence(client)
    problems: list[str] = []
    if before.get("aof_enabled"):
        problems += _rewrite_log(client, deadline_s)
    if _has_dump(client, before):
        problems += _dump(client, deadline_s)
    return [*problems, *_replicas(client)]


def _has_dump(client: Any, state: Mapping[str, Any]) -> bool:
    """Return True if the server writes dumps, or has a dump on its disk that it would load."""
    loaded = sum(state.get(f"rdb_last_load_keys_{name}", 1) for name in ("loaded", "expired"))
    if loaded or state.get("rdb_saves", 1):
        return True
    try:
        return bool(client.config_get("save").get("save", ""))
    except redis.exceptions.ResponseError:
        return True


def _rewrite_log(client: Any, deadline_s: float) -> list[str]:
    try:
        _wait(client, deadline_s, lambda now: not _is_busy(now))  # it began before the erasure
        _asked(client, "BGREWRITEAOF")
    except _NotPermittedError as error:
        return [f"the append-only file still holds what was erased ({error}): {_OTHERS}"]
    names = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    state = _wait(client, deadline_s, lambda now: not any(now.get(name) for name in names))
    if state is None or state.get("aof_last_bgrewrite_status") != "ok":
        return [f"the append-only file was not rewritten, and still holds what was erased: {_OTHERS}"]
    return _flushed(client)


def _flushed(client: Any) -> list[str]:
    """Wait until the erasure is on disk, if the server has WAITAOF (Redis and Valkey 7.2 or later)."""
    try:
        (local, *_) = _asked(client, "WAITAOF", 1, 0, int(_CALL_S * 1000))
    except _NotPermittedError:
        return []  # the server synced the new file before it replaced the old one
    if local:
        return []
    return ["the append-only file is not on the disk yet: a power failure may undo the erasure"]


def _dump(client: Any, deadline_s: float) -> list[str]:
    """Have the server write a dump that begins after the erasure."""
    problem = [f"the last dump of the server still holds what was erased: {_OTHERS}"]
    try:
        if _wait(client, deadline_s, lambda now: not _is_busy(now)) is None:
            return problem
        _asked(client, "BGSAVE")
    except _NotPermittedError as error:
        return [f"{problem[0]} ({error})"]
    state = _wait(client, deadline_s, lambda now: not now.get("rdb_bgsave_in_progress"))
    return [] if state is not None and state.get("rdb_last_bgsave_status") == "ok" else problem


def _replicas(client: Any) -> list[str]:
    """Wait for the replicas. A replica that becomes primary without the erasure would restore erased data."""
    try:
        state = client.info("replication")
        num_replicas = int(state.get("connected_slaves", 0)) if state.get("role") == "master" else 0
        num_there = _asked(client, "WAIT", num_replicas, int(_CALL_S * 1000)) if num_replicas else 0
    except (_NotPermittedError, redis.exceptions.ResponseError):
        return []
    if num_there >= num_replicas:
        return []
    missing = num_replicas - num_there
    return [f"{missing} of {num_replicas} replicas have not confirmed the erasure: look at them"]


def _wait(
    client: Any, deadline_s: float, is_over: Callable[[Mapping[str, Any]], bool]
) -> Mapping[str, Any] | None:
    """Return the server's state once ``is_over`` accepts it, or None after the deadline."""
    while not is_over(state := _persistence(client)):
        if time.monotonic() > deadline_s:
            return None
        time.sleep(_POLL_S)
    return state


def _is_busy(state: Mapping[str, Any]) -> bool:
    return bool(state.get("rdb_bgsave_in_progress") or state.get("aof_rewrite_in_progress"))


def _persistence(client: Any) -> Mapping[str, Any]:
    try:
        state: Mapping[str, Any] = client.info("persistence")
    except redis.exceptions.ResponseError as error:
        raise _NotPermittedError(_reason(error)) from None
    return state


def _asked(client: Any, *command: Any) -> Any:
    try:
        return client.execute_command(*command)
    except redis.exceptions.ResponseError as error:
        raise _NotPermittedError(_reason(error)) from None


def _reason(error: Exception) -> str:
    return str(error)[:120]
