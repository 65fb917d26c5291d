"""Paths that clients mean when they ask for another one: a base URL with ``/v1`` twice, or without it."""

from __future__ import annotations

from agentspec.gateway.call import Endpoint
from agentspec.wire import STAGE_URL_PREFIX

MODELS_PATH = "/v1/models"
TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"
VERSION = "v1"
PATHS = (*Endpoint, MODELS_PATH, TOKENIZE_PATH, DETOKENIZE_PATH)
# the longest first: /v1/completions is the end of /v1/chat/completions, too
_BY_SEGMENTS = sorted(
    ((tuple(part for part in path.split("/") if part and part != VERSION), str(path)) for path in PATHS),
    key=lambda one: -len(one[0]),
)


def meant_path(path: str) -> str | None:
    """Return the path of the API that ``path`` ends like, whatever its slashes and case; None without one."""
    segments = tuple(part for part in path.lower().split("/") if part)
    for ending, served in _BY_SEGMENTS:
        if segments[-len(ending) :] == ending:
            return served if served != path else None
    return None


def advice(path: str) -> str:
    """Return what a client should ask for instead of ``path``; empty if that is not known."""
    meant = meant_path(path)
    if meant is None:
        return ""
    if path.startswith(STAGE_URL_PREFIX):
        return f"with a stage, it is /stages/<path>{meant}: the base URL ends in /v1"
    if meant.startswith(f"/{VERSION}/"):
        return f"{meant} serves this: the client's base URL ends in /v1, once"
    return f"{meant} serves this"
