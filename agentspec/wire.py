"""Names of the wire format that gateway, adapters and engine plug-ins share.

Header names, ``vllm_xargs`` keys and the encoding of a stage path. No HTTP library, no state.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from agentspec.errors import StageError
from agentspec.stages import MAX_PATH_CHARS

# limits of what clients send
MAX_DRAFT_TOKENS = 1024
MAX_SESSION_CHARS = 255
MAX_SUBJECT_CHARS = 255
MAX_PREDICTION_CHARS = 1 << 20  # more than any context holds
MAX_REQUEST_ID_CHARS = 128

# request headers
HEADER_PREFIX = "x-agentspec-"
STAGE_HEADER = "x-agentspec-stage"
WORKFLOW_HEADER = "x-agentspec-workflow"  # prefix of a stage that the gateway finds
SESSION_HEADER = "x-agentspec-session"
MAX_DRAFT_HEADER = "x-agentspec-max-draft"  # 0 = no speculation for this request
MIN_MATCH_HEADER = "x-agentspec-min-match"
LEARN_HEADER = "x-agentspec-learn"  # 0 = this output joins no tree
SUBJECT_HEADER = "x-agentspec-subject"  # the person that the output may be about, for an erasure
AFFINITY_HEADER = "x-agentspec-affinity"  # from the gateway to a router: equal for calls of one engine
TRACE_HEADER = "x-agentspec-trace"  # 1 = trace every decode step: its draft, and the accepted tokens

# response headers
STAGE_SOURCE_HEADER = "x-agentspec-stage-source"
REQUEST_ID_HEADER = "x-request-id"
LEFT_OUT_HEADER = "x-agentspec-left-out"  # parts, items and tools of the request that the model is not shown

# keys inside the body's vllm_xargs; the gateway overwrites every key with this prefix
XARGS_FIELD = "vllm_xargs"
XARGS_PREFIX = "agentspec_"
XARG_STAGE = "agentspec_stage"
XARG_TENANT = "agentspec_tenant"
XARG_SESSION = "agentspec_session"
XARG_MAX_DRAFT = "agentspec_max_draft"
XARG_MIN_MATCH = "agentspec_min_match"
XARG_LEARN = "agentspec_learn"
XARG_SUBJECT = "agentspec_subject"  # a hash, in hexadecimal
XARG_PREDICTION = "agentspec_prediction"  # text that the client expects as output
XARG_TRACE = "agentspec_trace"  # the request's id, if its decode steps are traced under it

# prefix of the routes that OpenAI's API does not have, in the gateway and in the plug-in's control channel
OWN_PREFIX = "/agentspec/"

# URL form: /stages/<path>/v1/..., /workflows/<path>/v1/..., and /sessions/<id> before them or without them
STAGE_URL_PREFIX = "/stages/"
WORKFLOW_URL_PREFIX = "/workflows/"
SESSION_URL_PREFIX = "/sessions/"

METADATA_STAGE = "agentspec_stage"

# session headers that clients already send, in order of precedence
SESSION_HEADERS = (
    SESSION_HEADER,
    "x-parent-session-id",  # OpenCode: the run that a sub-agent belongs to
    "x-session-id",
    "x-litellm-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",  # OpenCode
    "x-dynamo-parent-session-id",  # OpenCode, too
    "x-dynamo-session-id",
    "session-id",  # Codex
    "session_id",
)
# read last: a trace may be one call, and a fairness id may be a whole team
TRACE_SESSION_HEADER = "x-litellm-trace-id"
FAIRNESS_HEADER = "x-fairness-id"


@lru_cache(maxsize=4096)
def encode_stage(path: str) -> str:
    """Encode a stage path for a header or URL: percent-encoded UTF-8, ``/`` kept."""
    return quote(path, safe="/")


def decode_stage(value: str) -> str:
    """Decode the result of :func:`encode_stage`.

    Raises:
        StageError: the value is longer than 255 characters, not ASCII, or not percent-encoded UTF-8.
    """
    if not value.isascii():
        raise StageError(f"stage {value!r} must be percent-encoded")
    if len(value) > MAX_PATH_CHARS:
        raise StageError(f"a stage header has at most {MAX_PATH_CHARS} characters, not {len(value)}")
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise StageError(f"stage {value!r} is not percent-encoded UTF-8") from None
