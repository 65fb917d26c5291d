"""Token Recycling and Lookahead in the decoding loop: outputs stay, the tables are the model's answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.draft import Source
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.passed import PassedRow, PassWatcher
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ConfigError, DuplicateRequestError
from agentspec.generation import SamplingParams
from agentspec.proposer import NoDrafts, Proposer
from agentspec.stages import StageKey
from lab.drafters.lookahead import Lookahead
from lab.drafters.token_recycling import TokenRecycler
from lab.tests.drafters.support import GREEDY, SAMPLED, Recording, outputs
from tests.support.fakes import STAGE

VOCAB_SIZE = 384
TREE = DraftConfig(mode="tree")
MAKE: dict[str, Callable[[], Proposer]] = {
    "recycling": lambda: TokenRecycler(VOCAB_SIZE, 12),
    "lookahead": lambda: Lookahead(window=3, ngram=3, guesses=3),
}


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("method", "mode"), [("recycling", "chain"), ("recycling", "tree"), ("lookahead", "tree")]
)
def test_outputs_are_identical(
    exact_model: Transformer, tokenizer: Tokenizer, method: str, mode: str, sampling: SamplingParams
) -> None:
    draft = DraftConfig(mode=mode, max_tokens=16)
    plain = outputs(exact_model, tokenizer, NoDrafts(), draft, sampling)
    proposer = Recording(MAKE[method]())
    assert outputs(exact_model, tokenizer, proposer, draft, sampling) == plain
    assert sum(map(len, proposer.drafts)) > 3 * len(proposer.drafts)
    assert {draft.source for draft in proposer.drafts} <= {Source.MODEL, Source.NONE}


def row(key: str, token_ids: np.ndarray, likely: dict[int, list[int]], num_own: int = 1) -> PassedRow:
    """Return a pass in which tokens of these places have these likeliest continuations."""
    logits = torch.zeros(len(token_ids) - num_own + 1, VOCAB_SIZE)
    for place, tokens in likely.items():
        for rank, token in enumerate(tokens):
            logits[place, token] = 10.0 - rank
    return PassedRow(key, 0, 0, token_ids, [*range(num_own)], None, logits, SamplerState(SamplingParams()))


# ---- Token Recycling ----


def test_candidates_are_the_models_last_ones() -> None:
    recycler = TokenRecycler(VOCAB_SIZE, 4)
    assert isinstance(recycler, PassWatcher)
    recycler.start("r", STAGE, ids(5), draft=DraftConfig(mode="tree"))
    assert len(recycler.step([("r", ids())])[0]) == 0
    recycler.watch([row("r", ids(5, 9), {0: [1, 2], 1: [3, 4]})])
    recycler.watch([row("r", ids(1), {0: [7, 8]})])
    [draft] = recycler.step([("r", ids(5))])
    # the shape: a, b, a's first, c. c is one of the candidates that the row left equal
    assert draft.token_ids.tolist()[:3] == [1, 2, 7]
    assert draft.parents.tolist() == [-1, -1, 0, -1]
    recycler.watch([row("r", ids(5), {0: [6]})])
    assert recycler.step([("r", ids())])[0].token_ids[0] == 6


def test_a_prompts_tokens_without_logits_give_no_candidates() -> None:
    recycler = TokenRecycler(VOCAB_SIZE, 4)
    recycler.start("r", STAGE, ids(5, 6, 7))
    recycler.watch([row("r", ids(5, 6, 7), {0: [1]}, num_own=3)])
    [draft] = recycler.step([("r", ids(7))])
    assert draft.token_ids.tolist()[:1] == [1]  # the prompt's last token has logits
    assert len(recycler.step([("r", ids(6))])[0]) == 0


def test_a_recycler_obeys_the_limits_of_a_request() -> None:
    recycler = TokenRecycler(VOCAB_SIZE, 8)
    for name, draft in (("off", DraftConfig(mode="off")), ("two", DraftConfig(max_tokens=2)), ("all", None)):
        recycler.start(name, STAGE, ids(5), draft=draft)
    recycler.watch([row("all", ids(5), {0: [5]}), row("gone", ids(5), {0: [6]})])
    drafts = recycler.step([(name, ids()) for name in ("off", "two", "all")], max_tokens=5)
    assert [*map(len, drafts)] == [0, 2, 5]
    assert set(drafts[2].token_ids.tolist()) == {5}


def test_what_a_table_holds_stays_with_its_tenant() -> None:
    recycler = TokenRecycler(VOCAB_SIZE, 4)
    for name, tenant in (("a", "acme"), ("b", "acme"), ("c", "other")):
        recycler.start(name, StageKey(tenant, ("stage",)), ids(5))
    recycler.start("d", StageKey("acme", ("stage",)), ids(5), learn=False)
    recycler.watch([row("a", ids(5), {0: [1]}), row("d", ids(5), {0: [2]})])
    drafts = recycler.step([(name, ids()) for name in "abcd"])
    assert [draft.token_ids.tolist()[:1] for draft in drafts] == [[1], [1], [], [1]]


@pytest.mark.parametrize("method", MAKE)
def test_a_live_id_is_refused(method: str) -> None:
    proposer = MAKE[method]()
    proposer.start("r", STAGE, ids(5))
    with pytest.raises(DuplicateRequestError, match="'r' is live already"):
        proposer.start("r", STAGE, ids(5))
    proposer.finish("r")
    proposer.start("r", STAGE, ids(5))


# ---- Lookahead ----


def test_the_window_is_a_tree_of_columns() -> None:
    lookahead = Lookahead(window=3, ngram=3, guesses=2)
    lookahead.start("r", STAGE, ids(1, 2, 3, 4, 5, 6), draft=TREE)
    [draft] = lookahead.step([("r", ids(9))])
    assert draft.token_ids.tolist() == [1, 2, 3, 4, 5, 6]  # two rows of three; no n-gram begins with 9
    assert draft.parents.tolist() == [-1, 0, 1, 0, 1, 2]
    # the answers to the newest row complete the n-grams 1 4 x, 2 5 y and 3 6 z
    answers = {4: [70], 5: [80], 6: [90]}
    lookahead.watch([row("r", np.concatenate([ids(9), draft.token_ids]), answers)])
    [draft] = lookahead.step([("r", ids(2))])
    assert draft.token_ids.tolist()[:6] == [4, 5, 6, 70, 80, 90]
    assert draft.token_ids.tolist()[6:] == [5, 80, 3, 4]  # the newest first; 2 3 4 is the prompt's
    assert draft.parents.tolist()[6:] == [-1, 6, -1, 8]


def test_equal_siblings_become_one() -> None:
    """The verifier follows the first of two, so what is below the other could not be accepted."""
    lookahead = Lookahead(window=2, ngram=3, guesses=3)
    lookahead.start("r", STAGE, ids(1, 7, 8, 1, 7, 9, 7, 5, 6, 0), draft=TREE)
    [draft] = lookahead.step([("r", ids(1))])
    # the window is 7 5 over 6 0; the n-grams 1 7 9 and 1 7 8 begin with its first token
    assert draft.token_ids.tolist() == [7, 5, 6, 0, 9, 8]
    assert draft.parents.tolist() == [-1, 0, 0, 1, 0, 0]


def test_only_the_newest_ngrams_are_kept() -> None:
    lookahead = Lookahead(window=1, ngram=2, guesses=2)
    lookahead.start("r", STAGE, ids(1, 2, 1, 3, 1, 4, 1, 3), draft=TREE)
    [draft] = lookahead.step([("r", ids(1))])
    assert draft.token_ids.tolist() == [3, 4]  # 3 is the window, too; 2 was dropped


def test_a_draft_without_room_for_the_window_is_none() -> None:
    lookahead = Lookahead(window=3, ngram=3)
    lookahead.start("r", STAGE, ids(1, 2, 3), draft=TREE)
    for mode in ("off", "chain"):
        lookahead.start(mode, STAGE, ids(1, 2, 3), draft=DraftConfig(mode=mode))
    assert [*map(len, lookahead.step([("r", ids(1)), ("off", ids(1))], max_tokens=5))] == [0, 0]
    assert [*map(len, lookahead.step([("r", ids(1)), ("chain", ids(1))]))][1:] == [0]
    [draft] = lookahead.step([("r", ids())], max_tokens=7)  # no room for an n-gram
    assert len(draft) == 6
    lookahead.watch([row("r", np.concatenate([ids(1), draft.token_ids[:4]]), {})])  # cut: no answers
    lookahead.watch([row("gone", ids(1), {})])
    assert lookahead.step([("r", ids())])[0].token_ids.tolist()[:6] == draft.token_ids.tolist()


@pytest.mark.parametrize(
    ("sizes", "name"), [({"window": 0}, "window"), ({"ngram": 1}, "ngram"), ({"guesses": 0}, "guesses")]
)
def test_bad_sizes(sizes: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer"):
        Lookahead(**sizes)
