"""LiteLLM as a library: tag every completion, for the clients of all providers.

    instrument(workflow="agentic_sql")
    litellm.completion(model="hosted_vllm/agentspec-sql", ..., metadata={"agentspec_stage": "extract"})

Only some providers use the ``openai`` client. One function of LiteLLM prepares all calls, including those of
routers. The adapter adds the headers to its result.

The stage is the first that exists of: ``metadata={"agentspec_stage": ...}`` of the call; the enclosing block;
the note of a calling framework's adapter, with ``metadata["generation_name"]`` below. The session is that of
the block or framework, else ``litellm_session_id`` or ``metadata["session_id"]`` or ``["trace_id"]``. Tagged
calls without explicit headers also send ``litellm.headers``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, framework, replacements

with framework():
    import litellm.utils

from agentspec.adapters.allowed_hosts import HOSTS
from agentspec.adapters.caller import Caller
from agentspec.adapters.client_requests import log_tags, logger
from agentspec.adapters.headers import lacking
from agentspec.adapters.hooks import below
from agentspec.wire import METADATA_STAGE

__all__ = ["instrument"]

_METADATA_FIELDS = ("metadata", "litellm_metadata")
_SESSION_FIELDS = ("session_id", "trace_id")  # the fields that Langfuse uses
_HEADERS_FIELDS = {
    **dict.fromkeys(("completion", "acompletion", "text_completion", "atext_completion"), "headers"),
    **dict.fromkeys(("responses", "aresponses"), "extra_headers"),
}


# position of the model among the arguments of the replaced function, after its own two
_MODEL_ARGUMENT = {name: 2 if name in ("completion", "acompletion") else 3 for name in _HEADERS_FIELDS}
_OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")


def _tagging(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def function_setup(call_type: str, *args: Any, **kwargs: Any) -> Any:
        noted, options = original(call_type, *args, **kwargs)
        field = _HEADERS_FIELDS.get(call_type)
        if field is None or not _TAGGING.is_in_force:
            return noted, options
        model = options.get("model") or next(iter(args[_MODEL_ARGUMENT[call_type] :]), None)
        return noted, _tagged(options, field, str(model))

    return function_setup


_TAGGING = Instrumentation(replacements((litellm.utils, "function_setup", _tagging)))
instrument = _TAGGING.instrument


def gets_tags(model: str, options: Mapping[str, Any]) -> bool:
    """Return True if LiteLLM sends all attempts of a call with these options to servers that get tags.

    The final address is not known before the call. If it is uncertain, the result is False.
    """
    attempts = [(model, options)]
    for fallback in options.get("fallbacks") or litellm.model_fallbacks or ():
        own = fallback if isinstance(fallback, Mapping) else {"model": fallback}
        attempts.append((str(own.get("model", model)), {**options, **own}))
    addresses = [address for attempt in attempts for address in _addresses(*attempt)]
    return all(HOSTS.allow_url(address) for address in addresses)


def _addresses(model: str, options: Mapping[str, Any]) -> list[str | None]:
    """Return the addresses to which one attempt may be sent; None = unknown."""
    client = getattr(options.get("client"), "base_url", None)
    explicit = [str(one) for one in (options.get("base_url"), options.get("api_base"), client) if one]
    if explicit:
        return [*explicit]
    if options.get("litellm_credential_name"):
        return [None]
    try:
        _, provider, _, told = litellm.get_llm_provider(model, options.get("custom_llm_provider"))
    except Exception:  # unknown model: LiteLLM itself raises an error for it
        return [None]
    if told is None and "openai" in provider:
        told = next(filter(None, map(os.environ.get, _OPENAI_VARIABLES)), None)
    return [one for one in (litellm.api_base, told) if one] or [None]


def _tagged(options: dict[str, Any], field: str, model: str) -> dict[str, Any]:
    """Return the options with our headers, except those set explicitly."""
    given = {**(options.get("headers") or {}), **(options.get("extra_headers") or {})}
    caller = _caller_of(options)
    ours = lacking(caller.headers(_TAGGING.workflow), given)
    if not ours or not gets_tags(model, options):
        return options
    if logger.isEnabledFor(logging.DEBUG):
        log_tags(model, {**ours, **given}, caller.by)
    kept = options.get(field) or (not given and litellm.headers) or {}  # default without explicit headers
    return {**options, field: {**kept, **ours}}


def _caller_of(options: Mapping[str, Any]) -> Caller:
    told = (options.get(field) for field in _METADATA_FIELDS)
    metadata: Mapping[str, Any] = next((one for one in told if one and isinstance(one, Mapping)), {})
    sessions = (options.get("litellm_session_id"), *(metadata.get(field) for field in _SESSION_FIELDS))
    session = next((str(one) for one in sessions if one), None)
    name = str(metadata.get("generation_name") or "")
    caller = below(name, session=session, by="LiteLLM's generation_name")
    named = metadata.get(METADATA_STAGE)
    return caller if named is None else replace(caller, named=str(named), by="LiteLLM's metadata")
