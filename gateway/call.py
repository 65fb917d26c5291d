"""One API call: its sender, path, request and outcome. The log record holds no message content."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from agentspec.errors import EngineError
from agentspec.gateway.errors import (
    RateLimitError,
    ShuttingDownError,
    UpstreamDownError,
    UpstreamTimeoutError,
)
from agentspec.tags import Tags
from agentspec.wire import STAGE_URL_PREFIX

MODEL_PREFIX = "/v1/models/"
MAX_MODEL_CHARS = 128  # clients choose the name
MODELS_PATH = "/v1/models"
TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"
VERSION = "v1"
BUSY_RETRY_S = 1.0


class Endpoint(StrEnum):
    """The paths that generate. A POST to any of them is tagged."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    CHAT_BATCH = "/v1/chat/completions/batch"


class Outcome(StrEnum):
    """Reason for which a response that had started did not complete."""

    CLIENT_LEFT = "client_left"
    ENGINE_LOST = "engine_lost"
    ENGINE_SILENT = "engine_silent"
    ENGINE_FAILED = "engine_failed"
    SHUT_DOWN = "shut_down"
    INTERNAL_ERROR = "internal_error"

    @classmethod
    def of(cls, error: Exception) -> Outcome:
        """Return the outcome that ``error`` causes."""
        kinds: tuple[tuple[type[Exception], Outcome], ...] = (
            (UpstreamDownError, cls.ENGINE_LOST),
            (UpstreamTimeoutError, cls.ENGINE_SILENT),
            (ShuttingDownError, cls.SHUT_DOWN),
            (EngineError, cls.ENGINE_FAILED),
        )
        return next((outcome for kind, outcome in kinds if isinstance(error, kind)), cls.INTERNAL_ERROR)


@dataclass(slots=True)
class CallLog:
    """Facts about one call. Each layer adds its own; they are read when the call is over.

    Attributes:
        tenant: None until the key is looked up.
        model: the requested model.
        tags: None until they are read, and for calls that generate nothing.
        upstream: name of the engine that answered, or was asked last.
        num_tries: number of attempts on engines.
        reported: the payload with the usage at the end of the response, see ``UsageTail``.
        outcome: None for a complete response.
        trace_headers: the call's trace context as headers for the engine. If empty, the client's are used.
    """

    tenant: str | None = None
    model: str | None = None
    tags: Tags | None = None
    upstream: str | None = None
    num_tries: int = 0
    reported: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    trace_headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def num_retries(self) -> int:
        """Number of tries after the first."""
        return max(0, self.num_tries - 1)

    @property
    def is_broken(self) -> bool:
        """True if the response is incomplete and the client did not cause that."""
        return self.outcome is not None and self.outcome is not Outcome.CLIENT_LEFT

    @property
    def named_model(self) -> str | None:
        """The model's name, cut to ``MAX_MODEL_CHARS``."""
        return None if self.model is None else self.model[:MAX_MODEL_CHARS]

    def fields(self) -> dict[str, object]:
        """Return the known facts under their names in the log."""
        tags = self.tags
        named = {
            "tenant": self.tenant,
            "stage": tags and tags.stage.name,
            "stage_source": tags and tags.stage_source,
            "model": self.named_model,
            "upstream": self.upstream,
            "retries": self.num_retries or None,
            "outcome": self.outcome and self.outcome.value,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request after its body was read, with its tenant and tags.

    Attributes:
        path: percent-encoded as received, without the stage.
        query: the part after the ``?``.
        raw_body: the bytes as received.
        body: the JSON object in ``raw_body``; None if it holds none.
        tags: None for calls that generate nothing.
        record: the call's log record; callers without their own get a new one.
    """

    method: str
    path: str
    query: str
    request_id: str
    tenant: str
    headers: Headers
    raw_body: bytes
    body: Mapping[str, Any] | None
    tags: Tags | None
    record: CallLog = field(default_factory=CallLog)

    @property
    def model(self) -> str | None:
        """The model that the call names, or None."""
        if self.path.startswith(MODEL_PREFIX):
            return unquote(self.path.removeprefix(MODEL_PREFIX))
        model = None if self.body is None else self.body.get("model")
        return model if isinstance(model, str) else None


PATHS = (*Endpoint, MODELS_PATH, TOKENIZE_PATH, DETOKENIZE_PATH)
# the longest first: /v1/completions is the end of /v1/chat/completions, too
_BY_SEGMENTS = sorted(
    ((tuple(part for part in path.split("/") if part and part != VERSION), str(path)) for path in PATHS),
    key=lambda one: -len(one[0]),
)


def meant_path(path: str) -> str | None:
    """Return the API's path that ends ``path``, ignoring extra slashes and case; None without one."""
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


class RateLimits:
    """A token bucket that holds a minute's requests, and a count of those in flight.

    Args:
        requests_per_minute, max_concurrent: None = no limit.
        clock: seconds, monotonic.
    """

    def __init__(
        self, requests_per_minute: int | None, max_concurrent: int | None, clock: Callable[[], float]
    ) -> None:
        self._per_minute = requests_per_minute
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._num_running = 0
        self._num_left = float(requests_per_minute or 0)
        self._filled_s = clock()

    @property
    def is_short(self) -> bool:
        """True if :meth:`take_more` may find room for one more request."""
        return False

    async def take_more(self) -> None:
        """Ask the other gateways for room."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one request in flight within the context. Raises RateLimitError if it exceeds a limit."""
        self._admit()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def _admit(self) -> None:
        self._admit_share(1)

    def _admit_share(self, num_shares: int) -> None:
        """Take a request from an equal share of the limits."""
        if self._max_concurrent is not None:
            self._check_room(math.ceil(self._max_concurrent / num_shares))
        if self._per_minute is not None:
            self._refill(self._per_minute / num_shares)
            self._take_one(60 * num_shares / self._per_minute)

    def _check_room(self, num_slots: int) -> None:
        if self._num_running >= num_slots:
            raise RateLimitError(
                f"this key may have {self._max_concurrent} requests at a time", retry_after_s=BUSY_RETRY_S
            )

    def _refill(self, per_minute: float) -> None:
        now_s = self._clock()
        most = max(1.0, per_minute)  # a share may be less than one
        self._num_left = min(most, self._num_left + (now_s - self._filled_s) * per_minute / 60)
        self._filled_s = now_s

    def _take_one(self, interval_s: float) -> None:
        """Take a request from the bucket, which gets one in each interval."""
        if self._num_left < 1:
            raise RateLimitError(
                f"this key may send {self._per_minute} requests a minute",
                retry_after_s=(1 - self._num_left) * interval_s,
            )
        self._num_left -= 1


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request.

    Attributes:
        is_operator: True if it may use routes that concern all tenants.
    """

    tenant: str
    limits: RateLimits
    is_operator: bool = False
