"""The corpus of a fleet, and another one of this host for the outputs of stages that do not leave it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from agentspec.corpus.corpus import Corpus, CorpusFigures
from agentspec.corpus.host_erasures import HostErasures
from agentspec.corpus.learner import LearnerFigures
from agentspec.corpus.output import Tokens
from agentspec.corpus.publisher import PublisherFigures
from agentspec.corpus.written import WrittenOutput
from agentspec.stages import StageKey

Figures = TypeVar("Figures", PublisherFigures, LearnerFigures)


class SplitCorpus:
    """Shares each output in one of two corpora, by its stage, and learns from both. Thread-safe.

    Both learn into the same trees. If one has to empty these, the other learns its outputs again. An erasure
    that the fleet's corpus meets is carried out in the host's as well.

    Args:
        fleet, host: not started. Both are closed with this one.
        is_of_host: says which stages' outputs stay on the host, by their path.
        folder: of the host's corpus.
        vocabulary: fingerprint of the tokenizer.
    """

    def __init__(
        self,
        fleet: Corpus,
        host: Corpus,
        is_of_host: Callable[[tuple[str, ...]], bool],
        folder: Path,
        vocabulary: str,
    ) -> None:
        self._fleet = fleet
        self._host = host
        self._is_of_host = is_of_host
        self._erasures = HostErasures(folder, vocabulary, host.forget)
        fleet.share_trees_with(host)
        host.share_trees_with(fleet)
        fleet.pass_erasures_to(host, self._erasures.note)

    def start(self) -> None:
        """Start the threads. Serving need not wait for what they learn."""
        self._erasures.start()
        self._host.start()
        self._fleet.start()

    def wait_joined(self, timeout_s: float) -> bool:
        """Wait until both have learned what the stores held at the start: :meth:`Corpus.wait_joined`."""
        end_s = time.monotonic() + timeout_s
        has_host = self._host.wait_joined(timeout_s)
        return self._fleet.wait_joined(max(0.0, end_s - time.monotonic())) and has_host

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, as far as the time allows, and close the stores."""
        end_s = time.monotonic() + timeout_s
        closing = threading.Thread(target=self._fleet.close, args=(timeout_s,))  # neither waits for the other
        closing.start()
        self._erasures.close(timeout_s / 2)  # first: it uses the host's store
        self._host.close(max(0.0, end_s - time.monotonic()))
        closing.join()

    def share(
        self,
        stage: StageKey,
        token_ids: Tokens | Sequence[int],
        *,
        subject: bytes = b"",
        session: str | None = None,
        num_accepted_from_shared: int = 0,
        written: WrittenOutput | None = None,
    ) -> None:
        """Publish what this engine's trees have learned of a finished output: :meth:`Corpus.share`."""
        self._of(stage).share(
            stage,
            token_ids,
            subject=subject,
            session=session,
            num_accepted_from_shared=num_accepted_from_shared,
            written=written,
        )

    def begin(self, stage: StageKey, subject: bytes = b"") -> WrittenOutput:
        """Return what shows an output to other engines while it is written."""
        return self._of(stage).begin(stage, subject)

    def figures(self) -> CorpusFigures:
        """Return the present figures of both together."""
        fleet, host = self._fleet.figures(), self._host.figures()
        publishers, learners = (fleet.publisher, host.publisher), (fleet.learner, host.learner)
        since_s = [one.since_success_s for one in publishers if one.since_success_s is not None]
        return CorpusFigures(
            replace(_sum(*publishers, but="since_success_s"), since_success_s=max(since_s, default=None)),
            replace(_sum(*learners, but="lag_s"), lag_s=max(one.lag_s for one in learners)),
            fleet.num_snapshots + host.num_snapshots,
            fleet.num_snapshot_failures + host.num_snapshot_failures + self._erasures.num_failures,
            fleet.memory_bytes + host.memory_bytes,
        )

    def _of(self, stage: StageKey) -> Corpus:
        return self._host if self._is_of_host(stage.path) else self._fleet


def _sum(first: Figures, second: Figures, *, but: str) -> Figures:
    names = [one.name for one in fields(first) if one.name != but]
    return replace(first, **{name: getattr(first, name) + getattr(second, name) for name in names})
