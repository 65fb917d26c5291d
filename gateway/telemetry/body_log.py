"""Logs bodies if the settings say so. Every reader of the log then sees all prompts and responses."""

from __future__ import annotations

import logging

MOST_BYTES = 1 << 16

logger = logging.getLogger("agentspec.gateway")


def log_body(request_id: str, what: str, body: bytes) -> None:
    """Log ``body`` at level debug, cut to ``MOST_BYTES``."""
    logger.debug("%s: %s %s", request_id, what, body[:MOST_BYTES].decode(errors="replace"))
