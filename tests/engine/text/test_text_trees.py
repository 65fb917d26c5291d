from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentspec.engine.text.text_trees import TextForest
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ForestFileError
from agentspec.forest import Forest
from agentspec.generation import PastOutput
from agentspec.proposer import Learner, NoDrafts
from agentspec.stages import StageKey
from tests.support.fakes import RecordingProposer

PLAN, EXTRACT = StageKey.parse("flow/plan"), StageKey.parse("flow/extract")
TEXT = "SELECT name FROM items WHERE price < 10;"


@pytest.fixture(scope="module")
def tokenizer(llama_checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(llama_checkpoint)


def drafted(forest: Forest, tokenizer: Tokenizer, stage: StageKey, prefix: str) -> str:
    forest.start("r", stage, np.empty(0, np.int32))
    forest.observe("r", tokenizer.encode(prefix))
    draft = forest.draft("r")
    forest.finish("r", learn=False)
    return tokenizer.decode(draft.token_ids)


def test_what_was_learned_as_text_is_drafted(tokenizer: Tokenizer) -> None:
    forest = Forest()
    num_tokens = TextForest(tokenizer, forest).learn([PastOutput(PLAN, TEXT), PastOutput(EXTRACT, "{}")])
    assert num_tokens == len(tokenizer.encode(TEXT)) + len(tokenizer.encode("{}"))
    assert TEXT.endswith(drafted(forest, tokenizer, PLAN, "SELECT name"))
    assert forest.stats(EXTRACT).num_sequences == 1


def test_a_stage_is_evicted_alone(tokenizer: Tokenizer) -> None:
    forest = Forest()
    trees = TextForest(tokenizer, forest)
    trees.learn([PastOutput(PLAN, TEXT), PastOutput(EXTRACT, TEXT)])
    num_bytes = forest.memory_bytes(PLAN)
    assert trees.evict(PLAN) == num_bytes > 0
    assert trees.evict(PLAN) == 0
    assert forest.stats(EXTRACT).num_sequences == 1


def test_a_file_carries_it_over(tokenizer: Tokenizer, tmp_path: Path) -> None:
    forest, later = Forest(), Forest()
    TextForest(tokenizer, forest).learn([PastOutput(PLAN, TEXT)])
    saved = TextForest(tokenizer, forest).save(tmp_path / "forest")
    assert saved["num_outputs"] == 3  # stage, workflow, tenant
    assert TextForest(tokenizer, later).load(tmp_path / "forest") == saved
    assert drafted(later, tokenizer, PLAN, "SELECT") == drafted(forest, tokenizer, PLAN, "SELECT") != ""


def test_a_file_of_another_tokenizer_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    Forest().save(tmp_path / "forest", vocabulary="sha256:0")
    with pytest.raises(ForestFileError, match="sha256:0"):
        TextForest(tokenizer, Forest()).load(tmp_path / "forest")
    assert tokenizer.vocabulary == Tokenizer.load(tokenizer.path_to_json.parent).vocabulary


@pytest.mark.parametrize(
    ("proposer", "keeps"), [(Forest(), True), (NoDrafts(), False), (RecordingProposer(), False)]
)
def test_who_keeps_what_it_learned(proposer: object, keeps: bool) -> None:
    assert isinstance(proposer, Learner) is keeps


class Sharing:
    def __init__(self) -> None:
        self.shared: list[tuple[StageKey, list[int]]] = []

    def share(self, stage: StageKey, token_ids: np.ndarray, **_: object) -> None:
        self.shared.append((stage, token_ids.tolist()))


def test_past_outputs_are_shared(tokenizer: Tokenizer) -> None:
    sharing = Sharing()
    TextForest(tokenizer, Forest(), sharing).learn([PastOutput(PLAN, TEXT)])
    assert sharing.shared == [(PLAN, tokenizer.encode(TEXT).tolist())]
