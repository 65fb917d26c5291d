"""Role names from clients and frameworks, without ids and personal data.

The id of an agent, a session or a run is never a stage: each would have its own tree. E-mail addresses,
telephone numbers, dates and machine addresses are removed too: they would also appear in metrics.
"""

from __future__ import annotations

import re

from agentspec.errors import StageError
from agentspec.stages import StageKey
from agentspec.wire import decode_stage, encode_stage

_SEPARATORS = " -_:.#@|"
_DIGITS = re.compile(r"[0-9]++")
_WORD_PART = re.compile(r"[A-Za-z0-9]{6,}+")
_PERSONAL = re.compile(
    r"[^\s/@<>]{1,64}@[^\s/@<>]+\.[^\W\d_]{2,24}"  # e-mail
    r"|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"  # IPv4
    r"|(?<![^\W_])\+?\(?\d(?:[ ()./:T-]{0,2}\d){5,30}Z?(?![^\W_])"  # telephone, ticket, customer, date, time
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"[0-9a-f]++|[0-9A-F]++")


def role_stage(path: str, tenant: str) -> StageKey | None:
    """Return the stage for a path of role names, without ids; None if no valid stage remains."""
    named = [(name, role_name(name)) for name in path.split("/")]
    roles = [
        role for name, role in named if role or not name
    ]  # an empty name is not an id: the path is malformed
    try:
        return StageKey.parse(
            decode_stage(encode_stage("/".join(roles))), tenant
        )  # as in a header, in which it is sent on
    except StageError:
        return None


def role_name(name: str) -> str:
    """Return ``planner`` of ``planner-3f2504e0-4f89-11d3-9a0c-0305e82c3301``; empty for an id only."""
    kept = mask_ids(_PERSONAL.sub("<id>", _UUID.sub("<id>", name)))  # a part of a UUID may look like a date
    if kept == name:
        return name
    return " ".join(part.strip(_SEPARATORS) for part in kept.split("<id>") if part.strip(_SEPARATORS))


def mask_ids(name: str) -> str:
    """Replace each UUID, hex number, ULID or mix of letters and digits in ``name`` by ``<id>``."""
    return _WORD_PART.sub(_mark_id, _UUID.sub("<id>", name))


def _mark_id(match: re.Match[str]) -> str:
    """Return ``<id>`` for a generated part: mixed digits and letters, hex, or nine or more digits."""
    part = match[0]
    num_digits = sum(map(str.isdigit, part))
    if num_digits == len(part) or num_digits == 0:
        return "<id>" if num_digits >= 9 else part
    num_turns = len(_DIGITS.findall(part))
    is_id = bool(_HEX.fullmatch(part)) or (num_turns >= 2 and num_digits >= 3)
    return "<id>" if is_id else part
