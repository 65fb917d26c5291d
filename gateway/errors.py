"""The gateway's errors and their form in OpenAI's API.

RequestError
├── AuthError            401  no key, or an unknown one
├── ForbiddenError       403  the key, or a missing key, does not permit this
├── UnknownUrlError      404
├── UnknownClusterError  404  the tenant has no cluster of this id
├── UnknownTraceError    404  the tenant has no trace of this id
├── MethodNotAllowedError 405
├── SlowBodyError        408  the body did not arrive in time
├── BodyTooLargeError    413
├── UnsupportedEncodingError 415  the body is compressed in an unknown way
└── RateLimitError       429  the key has reached its limit
EngineError
├── NoControlError       501  the engine has no trees, or none within reach
├── ShuttingDownError    503  the grace period of a shutdown is over
├── QueueFullError       429  all engines are busy and the admission queue is full
├── QueueTimeoutError    503  no engine had room in time
├── UpstreamDownError    502  the connection to the engine broke
│   └── UnreachableError 502  the engine can't be reached
└── UpstreamTimeoutError 504
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from agentspec.errors import EngineError, RequestError, StageError

MAX_ENCODING_CHARS = 40
MAX_MESSAGE_CHARS = 500  # messages quote the client's input, which may be megabytes
# LiteLLM blames the body for every "invalid_request_error", regardless of the status
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
    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """The principal may not do this."""

    status = 403
    code = "forbidden"


class UnknownUrlError(RequestError):
    """No route matches this path."""

    status = 404
    code = "unknown_url"

    def __init__(self, method: str, path: str, advice: str = "") -> None:
        super().__init__(f"{method} {path}: {advice or 'there is nothing here'}")


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this method."""

    status = 405

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} {path}: only {allowed} here", code="method_not_allowed")
        self.headers = ((b"allow", allowed.encode()),)


class UnknownClusterError(RequestError):
    """The tenant has no cluster of this id."""

    status = 404
    code = "unknown_cluster"


class UnknownTraceError(RequestError):
    """The tenant has no trace of this id."""

    status = 404
    code = "unknown_trace"


class BodyTooLargeError(RequestError):
    """The request body exceeds the server's limit."""

    status = 413
    code = "body_too_large"


class UnsupportedEncodingError(RequestError):
    """The request body is compressed in a way that is unknown here."""

    status = 415

    def __init__(self, encoding: str, known: Sequence[str]) -> None:
        names = ", ".join(known)
        super().__init__(
            f"the content-encoding {encoding[:MAX_ENCODING_CHARS]!r} is not supported: send the body as it"
            f" is, or one of {names}",
            code="unsupported_encoding",
        )
        self.headers = ((b"accept-encoding", names.encode()),)


class SlowBodyError(RequestError):
    """The request body did not arrive in time."""

    status = 408
    code = "request_timeout"


class RateLimitError(RequestError):
    """The key exceeds its requests per minute, or its concurrent requests."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.headers = (retry_after(retry_after_s),)


class QueueFullError(EngineError):
    """Every engine is busy and the admission queue is full."""

    status = 429
    code = "queue_full"
    headers = ((b"retry-after", b"1"),)


class QueueTimeoutError(EngineError):
    """The request reached the time limit of the admission queue."""

    status = 503
    code = "queue_timeout"
    headers = ((b"retry-after", b"1"),)


class NoControlError(EngineError):
    """The engine has no trees, or this gateway can't reach them."""

    status = 501
    code = "not_supported_by_engine"


class ShuttingDownError(EngineError):
    """The server is shutting down and this request did not finish in time."""

    status = 503
    code = "shutting_down"


class UpstreamDownError(EngineError):
    """The upstream can't be reached, or its connection broke."""

    status = 502
    code = "upstream_unavailable"


class UnreachableError(UpstreamDownError):
    """No connection to the upstream can be made. The request is not the cause."""


class UpstreamTimeoutError(EngineError):
    """The upstream did not answer in time."""

    status = 504
    code = "upstream_timeout"


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Return the ``retry-after`` header in whole seconds, at least one."""
    return b"retry-after", b"%d" % max(1, math.ceil(seconds))


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return OpenAI's error object; a long message is cut."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(
    error: Exception, request_id: str | None = None, *, has_begun: bool = False
) -> tuple[int, dict[str, Any]]:
    """Return status and body for the client. Log errors that the client did not cause.

    Args:
        request_id: id of the failed request, for the log.
        has_begun: True if the response had started and breaks off.
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
