"""What an engine gives to others, noted."""

from __future__ import annotations

from typing import Any

from tests.support.fakes import STAGE


class Sharing:
    """Notes what is shared."""

    def __init__(self) -> None:
        self.shared: list[tuple[list[int], bytes]] = []
        self.sessions: list[str | None] = []

    def share(self, stage: Any, token_ids: Any, *, subject: bytes, session: str | None) -> None:
        assert stage == STAGE
        self.shared.append((list(token_ids), subject))
        self.sessions.append(session)
