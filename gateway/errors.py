"""What goes wrong at the gateway, and how OpenAI's clients are told.

RequestError
├── AuthError            401  no key, or one nobody gave out
├── ForbiddenError       403  a key, but not for this
├── UnknownUrlError      404
├── UnknownClusterError  404  the tenant has no cluster of this id
├── UnknownTraceError    404  the tenant has no trace of this id
├── MethodNotAllowedError 405
├── SlowBodyError        408  the body did not come in time
├── BodyTooLargeError    413
└── RateLimitError       429  this key has used up what it may
EngineError
├── NoControlError       501  the engine has no trees, or none within reach
├── ShuttingDownError    503  the grace period of a shutdown is over
├── QueueFullError       429  all engines are busy, and too many wait already
├── QueueTimeoutError    503  no engine had room in time
├── NoUpstreamError      503  every engine that could answer is out of order
├── UpstreamDownError    502  the engine behind the proxy broke off
│   └── UnreachableError 502  it can't be reached
└── UpstreamTimeoutError 504
"""

from __future__ import annotations

import logging
import math
from typing import Any

from agentspec.errors import EngineError, RequestError, StageError

MAX_MESSAGE_CHARS = 500  # messages quote what the client sent, and that may be megabytes
# whatever is an "invalid_request_error" is to LiteLLM the body's fault, whatever its status
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
}

logger = logging.getLogger("agentspec.gateway")


class AuthError(RequestError):
    """The request has no API key, or an unknown one."""

    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class ForbiddenError(RequestError):
    """Whoever asks is known, or need not be, and may not do this."""

    status = 403

    def __init__(self, message: str) -> None:
        super().__init__(message, code="forbidden")


class UnknownUrlError(RequestError):
    """Nothing answers here."""

    status = 404

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"{method} {path}: there is nothing here", code="unknown_url")


class MethodNotAllowedError(RequestError):
    """Something answers here, but not to this method."""

    status = 405

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} {path}: only {allowed} here", code="method_not_allowed")
        self.headers = ((b"allow", allowed.encode()),)


class UnknownClusterError(RequestError):
    """The tenant has no cluster of this id."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unknown_cluster")


class UnknownTraceError(RequestError):
    """The tenant has no trace of this id."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unknown_trace")


class BodyTooLargeError(RequestError):
    """The request's body is larger than this server reads."""

    status = 413

    def __init__(self, message: str) -> None:
        super().__init__(message, code="body_too_large")


class SlowBodyError(RequestError):
    """The request's body did not come in time."""

    status = 408

    def __init__(self, message: str) -> None:
        super().__init__(message, code="request_timeout")


class RateLimitError(RequestError):
    """This key asks more often, or more at a time, than it may."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.headers = (retry_after(retry_after_s),)


class QueueFullError(EngineError):
    """Every engine is busy, and as many requests wait as may."""

    status = 429
    code = "queue_full"
    headers = ((b"retry-after", b"1"),)


class QueueTimeoutError(EngineError):
    """The request has waited for its turn as long as it may."""

    status = 503
    code = "queue_timeout"
    headers = ((b"retry-after", b"1"),)


class NoUpstreamError(EngineError):
    """Every engine that could answer has failed too often and is left alone for now."""

    status = 503
    code = "no_upstream"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.headers = (retry_after(retry_after_s),)


class NoControlError(EngineError):
    """The engine has no trees, or they are beyond this gateway's reach."""

    status = 501
    code = "not_supported_by_engine"


class ShuttingDownError(EngineError):
    """The server stops and this request did not finish in time."""

    status = 503
    code = "shutting_down"


class UpstreamDownError(EngineError):
    """The upstream can't be reached, or broke off."""

    status = 502
    code = "upstream_unavailable"


class UnreachableError(UpstreamDownError):
    """No connection to the upstream can be made, whatever the request."""


class UpstreamTimeoutError(EngineError):
    """The upstream did not answer in time."""

    status = 504
    code = "upstream_timeout"


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    """The header that says when to come back: whole seconds, at least one."""
    return b"retry-after", b"%d" % max(1, math.ceil(seconds))


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object; a long message is cut."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(
    error: Exception, request_id: str | None = None, *, has_begun: bool = False
) -> tuple[int, dict[str, Any]]:
    """Status and body for a client; what is not the client's fault is logged.

    Args:
        request_id: of the request that failed, for the log.
        has_begun: the answer had, and breaks off.
    """
    fields = {"fields": {"request_id": request_id}} if request_id else None
    text = "an answer broke off: %s" if has_begun else "%s"
    if isinstance(error, RequestError):
        return error.status, error_body(error.status, str(error), param=error.param, code=error.code)
    if isinstance(error, StageError):
        return 400, error_body(400, str(error), code="invalid_stage")
    if isinstance(error, EngineError):
        status = getattr(error, "status", 500)
        if has_begun or not isinstance(error, ShuttingDownError):
            logger.warning(text, error, extra=fields)
        return status, error_body(status, str(error), code=getattr(error, "code", "engine_error"))
    logger.error(text, "unexpected error", exc_info=error, extra=fields)
    return 500, error_body(500, "the server failed; its log says why", code="internal_error")
