"""Names of roles that clients and their frameworks happen to carry, freed of what names one instance only.

An id of an agent, a session or a run is never a stage: every one of them would have a tree of its own.
"""

from __future__ import annotations

from agentspec.errors import StageError
from agentspec.gateway.masking import mask_ids
from agentspec.stages import StageKey
from agentspec.wire import decode_stage, encode_stage

_SEPARATORS = " -_:.#@|"


def role_stage(path: str, tenant: str) -> StageKey | None:
    """The stage that a path of names tells, without the ids in it; None if nothing good is left."""
    named = [(name, role_name(name)) for name in path.split("/")]
    roles = [
        role for name, role in named if role or not name
    ]  # an empty name is no id: the path is a bad one
    try:
        return StageKey.parse(
            decode_stage(encode_stage("/".join(roles))), tenant
        )  # it travels on as a header
    except StageError:
        return None


def role_name(name: str) -> str:
    """``planner`` of ``planner-3f2504e0-4f89-11d3-9a0c-0305e82c3301``; empty if it is an id alone."""
    kept = mask_ids(name)
    if kept == name:
        return name
    return " ".join(part.strip(_SEPARATORS) for part in kept.split("<id>") if part.strip(_SEPARATORS))
