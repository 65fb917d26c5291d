"""LiteLLM as a library: every completion tagged, whichever provider's client sends it.

    instrument(workflow="agentic_sql")
    litellm.completion(model="hosted_vllm/agentspec-sql", ..., metadata={"agentspec_stage": "extract"})

Only some providers go through the ``openai`` client. All calls, of routers too, are prepared by one function
of LiteLLM: the headers join what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import litellm.router
import litellm.utils

from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.hooks import Undo, below, hinted
from agentspec.adapters.replacement import Tagging
from agentspec.wire import METADATA_STAGE

__all__ = ["instrument"]

_METADATA_FIELDS = ("metadata", "litellm_metadata")
_SESSION_FIELDS = ("session_id", "trace_id")  # those that Langfuse knows
_HEADERS_FIELDS = {
    **dict.fromkeys(("completion", "acompletion", "text_completion", "atext_completion"), "headers"),
    **dict.fromkeys(("responses", "aresponses"), "extra_headers"),
}


def instrument(*, workflow: str | None = None) -> Undo:
    """Tag all completions and responses, also of routers that exist, until it is undone.

    The stage is, first that answers: ``metadata={"agentspec_stage": ...}`` of the call; the block of code
    around; what the adapter of a framework that calls LiteLLM noted, with ``metadata["generation_name"]``
    below. The session is that of the block or framework, else ``litellm_session_id`` or
    ``metadata["session_id"]`` or ``["trace_id"]``. Headers that are given by hand stay; ``litellm.headers``
    go with every tagged call that has none. The workflow is that of the last instrumentation in force.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
    """
    agentspec_headers(workflow)
    return _TAGGING.instrument(workflow)


def _tagging(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def function_setup(call_type: str, *args: Any, **kwargs: Any) -> Any:
        logging, options = original(call_type, *args, **kwargs)
        field = _HEADERS_FIELDS.get(call_type)
        if field is None or not _TAGGING.is_in_force:
            return logging, options
        return logging, _tagged(options, field)

    return function_setup


def _keeping_caller(original: Callable[..., Any]) -> Callable[..., Any]:
    """A router that is called synchronously inside an event loop works in a thread without a context."""

    @wraps(original)
    def run_async_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        caller = hinted()

        async def noted(*args: Any, **kwargs: Any) -> Any:
            with calling(caller):
                return await function(*args, **kwargs)

        return original(noted, *args, **kwargs)

    return run_async_function


_TAGGING = Tagging(
    (litellm.utils, "function_setup", _tagging), (litellm.router, "run_async_function", _keeping_caller)
)


def _tagged(options: dict[str, Any], field: str) -> dict[str, Any]:
    """The options with our headers, but for those that were given by hand."""
    given = {**(options.get("headers") or {}), **(options.get("extra_headers") or {})}
    by_hand = {name.lower() for name in given}
    headers = _caller_of(options).headers(_TAGGING.workflow)
    ours = {name: value for name, value in headers.items() if name not in by_hand}
    if not ours:
        return options
    kept = options.get(field) or (not given and litellm.headers) or {}  # those hold where no others are given
    return {**options, field: {**kept, **ours}}


def _caller_of(options: Mapping[str, Any]) -> Caller:
    told = (options.get(field) for field in _METADATA_FIELDS)
    metadata: Mapping[str, Any] = next((one for one in told if one and isinstance(one, Mapping)), {})
    sessions = (options.get("litellm_session_id"), *(metadata.get(field) for field in _SESSION_FIELDS))
    session = next((str(one) for one in sessions if one), None)
    caller = below(str(metadata.get("generation_name") or ""), session=session)
    named = metadata.get(METADATA_STAGE)
    return caller if named is None else replace(caller, named=str(named))
