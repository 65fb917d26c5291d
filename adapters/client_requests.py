"""Tag the requests of ``openai`` and ``anthropic`` clients when they are built; both share one structure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from agentspec.adapters.allowed_hosts import HOSTS
from agentspec.adapters.block import OPEN_BLOCKS
from agentspec.adapters.caller import Caller, current_caller, run_session
from agentspec.adapters.headers import Tag, is_untagged
from agentspec.adapters.instrumentation import Instrumentation, replacements
from agentspec.wire import SESSION_HEADER, SESSION_HEADERS, STAGE_HEADER, WORKFLOW_HEADER, decode_stage

logger = logging.getLogger("agentspec.adapters")

NOBODY = Caller()


def tagging_requests(base_client: type) -> Instrumentation:
    """Return an instrumentation that tags the requests that clients of this class send to allowed servers.

    Explicit headers stay. If the stage header is explicitly omitted (``Omit``), the request gets no tags.
    """

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def build_request(client: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
            request = original(client, options, *args, **kwargs)
            if tagging.is_in_force:
                _tag(client, options, request, tagging.workflow)
            return request

        return build_request

    tagging = Instrumentation(replacements((base_client, "_build_request", replacing)))
    return tagging


def _tag(client: Any, options: Any, request: Any, workflow: str | None) -> None:
    given = options.headers if isinstance(options.headers, Mapping) else {}
    by_hand = {name.lower(): value for name, value in (*client._custom_headers.items(), *given.items())}
    caller = current_caller()
    if caller.is_untagged or is_untagged(by_hand):
        _strip(request.headers, given)
        return
    host = request.url.host
    if not HOSTS.allow(host):
        _strip(request.headers, given)
        log_stranger(host)
        return
    if caller == NOBODY:
        OPEN_BLOCKS.warn_of_lost_tags()
    headers = request.headers
    for name, value in caller.headers(workflow).items():
        if name not in by_hand:  # an explicitly omitted header stays omitted
            headers.setdefault(name, value)
    session = run_session()
    if session is not None and not any(name in headers or name in by_hand for name in SESSION_HEADERS):
        headers[SESSION_HEADER] = session
    if logger.isEnabledFor(logging.DEBUG) and not any(isinstance(value, Tag) for value in given.values()):
        _log(options.json_data, headers, caller.by)


def _strip(headers: Any, given: Mapping[str, Any]) -> None:
    """Remove the headers that another adapter set."""
    for name, value in given.items():
        if isinstance(value, Tag) and name in headers:
            del headers[name]


def _log(body: Any, headers: Mapping[str, str], by: str | None) -> None:
    model = body.get("model") if isinstance(body, Mapping) else None
    log_tags(model, headers, by)


def log_stranger(host: str | None) -> None:
    """Log that a call got no tags because its server is not allowed."""
    logger.debug("not tagged: %s is no host of hosts=[...], nor a private one", host)


def log_tags(model: Any, headers: Mapping[str, str], by: str | None) -> None:
    """Log the tags of a call and the source of its stage."""
    stage, workflow = headers.get(STAGE_HEADER), headers.get(WORKFLOW_HEADER)
    if stage is not None:
        what = f"as {decode_stage(stage)} by {by or 'a header'}"
    elif workflow is not None:
        what = f"as one of {decode_stage(workflow)}, and the gateway finds its stage"
    else:
        what = "with no stage: the gateway finds it"
    session = headers.get(SESSION_HEADER)
    logger.debug("tagged %s %s%s", model, what, f", session {session}" if session else "")
