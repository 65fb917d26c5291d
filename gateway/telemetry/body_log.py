"""Bodies in the log, where the settings ask for them: every tenant's prompts and answers, for all to read."""

from __future__ import annotations

import logging

MOST_BYTES = 1 << 16

logger = logging.getLogger("agentspec.gateway")


def log_body(request_id: str, what: str, body: bytes) -> None:
    """A line at level debug, cut if it is long."""
    logger.debug("%s: %s %s", request_id, what, body[:MOST_BYTES].decode(errors="replace"))
