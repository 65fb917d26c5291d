"""What an engine shows and gives to others, noted."""

from __future__ import annotations

from typing import Any

from tests.support.fakes import STAGE


class Shown:
    """Notes what is shown of one output."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.is_abandoned = False

    def show(self, token_ids: Any) -> None:
        self.tokens.append(list(token_ids))

    def abandon(self) -> None:
        self.is_abandoned = True


class Sharing:
    """Notes what is shared."""

    def __init__(self) -> None:
        self.shared: list[tuple[list[int], bytes, int]] = []
        self.sessions: list[str | None] = []
        self.shown: list[Shown] = []
        self.ended: list[Shown | None] = []

    def begin(self, stage: Any, subject: bytes) -> Shown:
        assert stage == STAGE
        self.shown.append(Shown())
        return self.shown[-1]

    def share(
        self,
        stage: Any,
        token_ids: Any,
        *,
        subject: bytes,
        session: str | None,
        num_accepted_from_shared: int,
        written: Any,
    ) -> None:
        assert stage == STAGE
        self.shared.append((list(token_ids), subject, num_accepted_from_shared))
        self.sessions.append(session)
        self.ended.append(written)
