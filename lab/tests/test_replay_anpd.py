"""ANPD, compared with hand-worked examples, and replay's drafters as live proposers."""

from __future__ import annotations

import numpy as np

from agentspec.config import DraftConfig
from agentspec.proposer import NoDrafts
from agentspec.replay.calls import Call
from agentspec.replay.drafter import PromptLookup
from agentspec.stages import StageKey
from lab.replay.anpd import AdaptiveNgrams
from lab.replay.live import LiveDrafter

STAGE = StageKey("tenant", ("stage",))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def drafted(text: tuple[int, ...], most: int = 3, num_draft: int = 4) -> list[int]:
    drafter = AdaptiveNgrams(num_draft, most)
    drafter.start("r", Call("s", "a", ids(*text[:-1]), ids()))
    draft = drafter.step("r", ids(text[-1]))
    assert draft.is_chain
    drafter.finish("r", ids())
    return draft.token_ids.tolist()


def test_the_longest_context_decides():
    # after 1 alone, 5 is more frequent; after 2 1 there was 7
    assert drafted((1, 5, 1, 5, 2, 1, 7, 2, 1), num_draft=1) == [7]
    assert drafted((1, 5, 1, 5, 2, 1, 7, 9, 1), num_draft=1) == [5]


def test_each_draft_token_is_the_context_of_the_next():
    assert drafted((1, 2, 3, 4, 8, 1)) == [2, 3, 4, 8]
    assert drafted((1, 2, 9)) == []
    assert drafted((7, 1, 2, 7)) == [1, 2, 7, 1]


def test_a_replays_drafter_live():
    live = LiveDrafter(PromptLookup(3))
    live.start("r", STAGE, ids(1, 2, 3, 4, 5, 1), draft=DraftConfig())
    live.start("apart", STAGE, ids(1, 2, 3, 1), learn=False)
    drafts = live.step([("r", ids(2)), ("apart", ids(2))])
    assert [draft.token_ids.tolist() for draft in drafts] == [[3, 4, 5], []]
    live.observe("r", ids(9))
    live.observe("apart", ids(9))
    live.observe("r", ids(2, 3))
    assert live.step([("r", ids())])[0].token_ids.tolist() == [4, 5, 1]
    for name in ("r", "apart", "never"):
        live.finish(name)
    assert len(NoDrafts().step([("r", ids())])[0]) == 0
