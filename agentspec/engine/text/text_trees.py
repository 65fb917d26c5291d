"""The trees of an engine's proposer, addressed by text: learning outputs, and reading and writing files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import PastOutput
from agentspec.proposer import Learner, OutputSharing
from agentspec.stages import StageKey


class TextForest:
    """Implements :class:`agentspec.generation.Trees`. Safe to use from several threads.

    With ``sharing``, other engines learn past outputs as well.
    """

    def __init__(self, tokenizer: Tokenizer, learner: Learner, sharing: OutputSharing | None = None) -> None:
        self._tokenizer = tokenizer
        self._learner = learner
        self._sharing = sharing

    def learn(self, outputs: Sequence[PastOutput]) -> int:
        """Add past outputs to the trees of their stages. Return the number of their tokens."""
        num_tokens = 0
        for output in outputs:
            token_ids = self._tokenizer.encode(output.text)
            self._learner.learn(output.stage, token_ids)
            if self._sharing is not None:
                self._sharing.share(output.stage, token_ids)
            num_tokens += len(token_ids)
        return num_tokens

    def evict(self, stage: StageKey) -> int:
        """Remove the content of the stage's own tree. Return the number of freed bytes."""
        num_bytes = self._learner.memory_bytes(stage)
        self._learner.evict(stage)
        return num_bytes

    def save(self, path: Path) -> dict[str, int]:
        """Write all trees to a file. Return their sizes. Raises ForestFileError."""
        return asdict(self._learner.save(path, vocabulary=self._tokenizer.vocabulary))

    def load(self, path: Path) -> dict[str, int]:
        """Add the content of a file of trees. Return its sizes. Raises ForestFileError."""
        return asdict(self._learner.load(path, vocabulary=self._tokenizer.vocabulary))
