"""The tags of one request: stage, session, drafting options and prediction."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.stages import StageKey
from agentspec.wire import STAGE_HEADER, STAGE_SOURCE_HEADER, encode_stage, to_xargs


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one request. ``None`` leaves a setting to the engine."""

    stage: StageKey
    stage_source: str = "default"
    session: str | None = None
    max_draft: int | None = None
    min_match: int | None = None
    learn: bool = True
    prediction: str | None = None
    is_traced: bool = False

    @property
    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that report the resolved stage to the client."""
        return [
            (STAGE_HEADER.encode(), encode_stage(self.stage.name).encode()),
            (STAGE_SOURCE_HEADER.encode(), self.stage_source.encode()),
        ]

    @property
    def xargs(self) -> dict[str, str | int]:
        """The same tags as ``vllm_xargs``, for an engine behind HTTP."""
        return to_xargs(
            self.stage,
            session=self.session,
            max_draft=self.max_draft,
            min_match=self.min_match,
            learn=self.learn,
            prediction=self.prediction,
        )
