"""What all connections to an engine behind HTTP share: how long they are kept, and what their errors are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from agentspec.gateway.errors import UpstreamDownError, UpstreamTimeoutError

CONNECT_TIMEOUT_S = 5.0
# below the 5 s after which common servers close an idle connection: never reuse one they just closed
KEEPALIVE_S = 2.0


@contextmanager
def told_as_ours(root: str) -> Iterator[None]:
    """Raise UpstreamTimeoutError or UpstreamDownError, which name ``root``, where httpx raises its own."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise UpstreamTimeoutError(
            f"the engine at {root} did not answer in time ({type(error).__name__})"
        ) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise UpstreamDownError(f"the engine at {root} can't be reached: {reason}") from error
