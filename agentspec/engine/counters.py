"""Counters per stage, kept by the thread that decodes and read by any other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentspec.draft import Draft, Origin
from agentspec.engine.request import Choice
from agentspec.generation import GenerationRequest
from agentspec.stages import StageKey
from agentspec.stats import StageStats, StageTable
from agentspec.steps import StepSaving


class StageCounters:
    """The counters of every stage, for as many stages as a :class:`StageTable` keeps apart.

    Accepted tokens are the gain, since each pass yields one more token anyway. A finished output always has
    ``1 + num_steps + num_accepted_tokens`` tokens. The first of them is from the pass that ended the prompt,
    which does not count as a decode step.
    """

    def __init__(self) -> None:
        self._stages = StageTable(StageStats)
        self._lock = threading.Lock()

    def admitted(self, request: GenerationRequest, num_prompt_tokens: int) -> None:
        """Count a request that was accepted for decoding."""
        with self._lock:
            stats = self._stages.of(request.tags.stage)
            stats.num_requests += 1
            stats.num_prompt_tokens += num_prompt_tokens

    def prefilled(
        self,
        choice: Choice,
        draft: Draft,
        kept: Sequence[int],
        step_s: float | None = None,
        drafts_s: float = 0.0,
    ) -> None:
        """Count the pass that ended a prompt, yielded the first token and verified ``draft``.

        Args:
            kept: indices of the accepted tokens in the draft. Each saved a decode step.
            step_s: seconds of a decode step; None = not known.
            drafts_s: seconds that verifying the draft added to the pass.
        """
        with self._lock:
            stats = self._count_draft(choice, draft, kept)
            if len(draft) and step_s is not None:
                stats.measured_decode_s += drafts_s
                stats.plain_decode_s += len(kept) * step_s

    def decoded(
        self, choice: Choice, draft: Draft, kept: Sequence[int], saving: StepSaving | None = None
    ) -> None:
        """Count a decode step that verified ``draft``, kept these tokens of it, and yielded one more.

        Args:
            kept: indices of the accepted tokens in the draft.
            saving: time of the step with and without drafts; None = not known.
        """
        with self._lock:
            stats = self._count_draft(choice, draft, kept)
            stats.num_steps += 1
            choice.speculation.num_steps += 1
            if saving is not None:
                stats.measured_decode_s += saving.measured_s
                stats.plain_decode_s += saving.plain_s(len(kept) + 1)

    def _count_draft(self, choice: Choice, draft: Draft, kept: Sequence[int]) -> StageStats:
        """Count the tokens of a pass for an output. Return the stage's counters."""
        origins = Counter() if draft.origins is None else Counter(draft.origins[kept].tolist())
        stats = self._stages.of(choice.live.request.tags.stage)
        stats.num_output_tokens += len(kept) + 1
        for counted in (stats, choice.speculation):
            counted.count_draft(draft.source, len(draft), len(kept))
            counted.count_origins(origins[Origin.FLEET], origins[Origin.SNAPSHOT])
        return stats

    def finished(self, choice: Choice) -> None:
        """Count a choice that has ended."""
        with self._lock:
            stats = self._stages.of(choice.live.request.tags.stage)
            stats.decode_s += choice.last_token_s - choice.first_token_s

    def snapshot(
        self, tree_bytes: Callable[[StageKey], int] | None = None, tree_limit_bytes: int = 0
    ) -> dict[StageKey, StageStats]:
        """Return copies of all counters. ``tree_bytes`` returns the bytes of a stage's trees."""
        with self._lock:
            copies = {
                stage: replace(
                    stats,
                    drafted_by_source=dict(stats.drafted_by_source),
                    accepted_by_source=dict(stats.accepted_by_source),
                )
                for stage, stats in self._stages.all.items()
            }
        if tree_bytes is not None:
            for stage, stats in copies.items():
                stats.tree_bytes = tree_bytes(stage)
                stats.tree_limit_bytes = tree_limit_bytes
        return copies
