"""Each registered method, compared with one example worked by hand.

In OUTPUT, ``1 2`` occurs eight times, each time followed by two tokens and by one that occurs only once::

    3  5 of 8    3 5  4 of 8    3 6  1 of 8
    4  3 of 8    4 7  2 of 8    4 8  1 of 8
"""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import Source
from agentspec.config import DraftConfig
from agentspec.replay.calls import END, Call
from agentspec.replay.drafter import Drafter, PromptLookup
from agentspec.replay.methods import Rule
from agentspec.replay.replay import replay
from lab.replay.indexes import Datastore, StageTrees
from lab.replay.methods import METHODS

NONE: tuple[int, ...] = ()
ENDINGS = [(3, 6), (3, 5), (3, 5), (4, 7), (3, 5), (4, 8), (3, 5), (4, 7)]
OUTPUT = tuple(token for i, ending in enumerate(ENDINGS) for token in (1, 2, *ending, 100 + i))

SUFFIX = [
    ("paper-stage", Source.STAGE),
    ("paper-shared", Source.STAGE),
    ("paper-request", Source.REQUEST),
    ("paper-global", Source.STAGE),
]


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def call(prompt: tuple[int, ...], response: tuple[int, ...], stage: str = "s", session: str = "a") -> Call:
    return Call(stage, session, ids(*prompt), ids(*response, END))


def made(name: str, rule: Rule) -> Drafter:
    if name == "arctic":
        pytest.importorskip("arctic_inference")
    return METHODS[name].make(rule)


def start(drafter: Drafter, prompt: tuple[int, ...], name: str = "x") -> None:
    drafter.start(name, Call("s", "a", ids(*prompt), ids(END)))


def start_after_output(name: str, rule: Rule) -> Drafter:
    """Start a call with ``9`` after a call with OUTPUT. For paper-request, OUTPUT is in the prompt."""
    drafter = made(name, rule)
    if name == "paper-request":
        start(drafter, (*OUTPUT, 9))
        return drafter
    start(drafter, NONE, "before")
    drafter.step("before", ids(*OUTPUT))
    drafter.finish("before", ids(END))
    start(drafter, (9,))
    return drafter


@pytest.mark.parametrize(("name", "source"), SUFFIX)
def test_a_suffix_chain_goes_on_while_it_is_probable(name, source):
    drafter = start_after_output(name, Rule(max_tokens=8, alpha=2.0, min_prob=0.2))
    draft = drafter.step("x", ids(1, 2))
    # after 1 2: 3 at 5/8, then 5 at 4/8; each of the four tokens after that is at 1/8 < 0.2: score 9/8.
    # after 2 only: the same, and at most 2 x 1 tokens; the longer match is preferred
    assert draft.token_ids.tolist() == [3, 5]
    assert draft.is_chain
    assert draft.probs.tolist() == [5 / 8, 4 / 8]
    assert (draft.score, draft.match_length, draft.source) == (9 / 8, 2, source)


@pytest.mark.parametrize(("name", "source"), SUFFIX)
def test_a_suffix_tree_takes_the_most_probable_tokens(name, source):
    drafter = start_after_output(name, Rule("tree", max_tokens=8, alpha=2.0, min_prob=0.2))
    draft = drafter.step("x", ids(1, 2))
    # 2 x 2 tokens: 3 at 5/8 and its child 5 at 4/8; 4 at 3/8 and its child 7 at 2/8; all others are at 1/8
    assert draft.token_ids.tolist() == [3, 5, 4, 7]
    assert draft.parents.tolist() == [-1, 0, -1, 2]
    assert draft.probs.tolist() == [5 / 8, 4 / 8, 3 / 8, 2 / 8]
    assert (draft.score, draft.match_length, draft.source) == (14 / 8, 2, source)


@pytest.mark.parametrize(
    ("mode", "token_ids", "parents", "probs"),
    [
        ("chain", [3, 5], [-1, 0], [5 / 9, 4 / 9]),
        ("tree", [3, 5, 4, 7], [-1, 0, -1, 2], [5 / 9, 4 / 9, 3 / 9, 2 / 9]),
    ],
)
def test_arctic_counts_the_end_of_the_text_as_well(mode, token_ids, parents, probs):
    drafter = start_after_output("arctic", Rule(mode, max_tokens=8, alpha=2.0, min_prob=0.2))
    draft = drafter.step("x", ids(1, 2))
    # same as above, but 1 2 occurs nine times: eight times with a next token, and at the end
    assert draft.token_ids.tolist() == token_ids
    assert draft.parents.tolist() == parents
    assert draft.probs.tolist() == pytest.approx(probs)
    assert (draft.score, draft.match_length) == (pytest.approx(sum(probs)), 2)


@pytest.mark.parametrize("mode", ["chain", "tree"])
@pytest.mark.parametrize(
    ("name", "score", "source"),
    [
        # 1 x 2 tokens. In its own text, 70 and 71 followed 1 2 both times; in the output 3 and 5 score 9/8
        ("paper-stage", 2.0, Source.REQUEST),
        ("paper-shared", 2.0, Source.REQUEST),
        # two of three times, one being the end of the text; in the output 3 and 5 score 5/9 + 4/9
        ("arctic", 4 / 3, Source.TENANT),  # does not report which tree drafts
    ],
)
def test_the_tree_of_the_higher_score_drafts(name, score, source, mode):
    drafter = made(name, Rule(mode, max_tokens=8, alpha=1.0, min_prob=0.2))
    start(drafter, NONE, "before")
    drafter.step("before", ids(*OUTPUT))
    drafter.finish("before", ids(END))
    start(drafter, (1, 2, 70, 71, 9, 1, 2, 70, 71, 8))
    draft = drafter.step("x", ids(1, 2))
    assert draft.token_ids.tolist() == [70, 71]
    assert (draft.score, draft.match_length, draft.source) == (pytest.approx(score), 2, source)


def test_prompt_look_up_takes_up_to_five_tokens_and_no_fewer_than_two():
    drafter = made("pld", Rule(max_tokens=3))
    start(drafter, (2, 3, 7, 9, 2, 3, 8))
    draft = drafter.step("x", ids(9, 2, 3))  # 9 2 3 was followed by 8, then by this 9 2
    assert (draft.token_ids.tolist(), draft.match_length) == ([8, 9, 2], 3)
    draft = drafter.step("x", ids(5, 2, 3))  # 5 2 3 is new; 2 3 was first followed by 7
    assert (draft.token_ids.tolist(), draft.match_length) == ([7, 9, 2], 2)
    assert not len(drafter.step("x", ids(6, 3)))  # 3 is too short a match


def test_prompt_look_up_prefers_no_more_than_five_tokens():
    drafter = made("pld", Rule(max_tokens=1))
    start(drafter, (1, 2, 3, 4, 5, 50, 0, 1, 2, 3, 4, 5, 60))
    draft = drafter.step("x", ids(0, 1, 2, 3, 4, 5))
    # all six were followed by 60; the last five, the longest match tried, were first followed by 50
    assert (draft.token_ids.tolist(), draft.match_length) == ([50], 5)


def test_llma_looks_for_two_tokens_in_the_prompt():
    drafter = made("llma", Rule(max_tokens=3))
    start(drafter, (2, 3, 7, 9, 2, 3, 8))
    draft = drafter.step("x", ids(9, 2, 3))  # 2 3 was first followed by 7, after any token
    assert (draft.token_ids.tolist(), draft.match_length) == ([7, 9, 2], 2)
    assert drafter.step("x", ids(2, 3)).token_ids.tolist() == [7, 9, 2]
    assert drafter.step("x", ids(9, 2)).token_ids.tolist() == [3, 8]  # the prompt ends here
    assert not len(drafter.step("x", ids(8, 9)))  # 8 9 occurs only in the response


def test_rest_drafts_a_tree_behind_the_longest_match_alone():
    drafter = start_after_output("rest", Rule(max_tokens=4))
    draft = drafter.step("x", ids(1, 2))  # 9 1 2 is new; 1 2 as above: 5/8, 4/8, 3/8, 2/8, others 1/8
    assert draft.token_ids.tolist() == [3, 5, 4, 7]
    assert draft.parents.tolist() == [-1, 0, -1, 2]
    draft = drafter.step("x", ids(104, 1, 2))  # 104 1 2 occurred once, before 4 8 105 1
    assert (draft.token_ids.tolist(), draft.match_length) == ([4, 8, 105, 1], 3)
    assert draft.probs.tolist() == [1.0] * 4
    assert not len(drafter.step("x", ids(99)))


def test_rest_drafts_what_followed_the_longest_match_most_often():
    store = Datastore(3)
    for i, output in enumerate([(1, 2, 5, 7), (1, 2, 5, 8), (1, 2, 6), (9, 2, 4)]):
        store.start(str(i), call((), ()))
        store.step(str(i), ids(*output))
        store.finish(str(i), ids())
    store.start("x", call((8, 1), ()))
    draft = store.step("x", ids(2))  # 1 2 occurs three times, 8 1 2 never
    assert draft.match_length == 2
    assert draft.token_ids.tolist()[0] == 5
    assert sorted(draft.token_ids.tolist()[1:]) in ([6, 7], [6, 8], [7, 8])
    assert draft.probs[0] == np.float32(2 / 3)
    assert not len(store.step("x", ids(77)))


def test_arctic_drafts_by_the_same_rule():
    pytest.importorskip("arctic_inference")
    rng = np.random.default_rng(1)
    calls = [call((), tuple(rng.integers(1, 4, 30).tolist()), session=str(i)) for i in range(10)]
    rule = Rule(alpha=1.0)
    ours, theirs = (replay(calls, METHODS[name].make(rule))["s"] for name in ("paper-shared", "arctic"))
    assert ours.tokens == theirs.tokens
    assert abs(ours.tokens_per_step / theirs.tokens_per_step - 1) < 0.1  # ties may differ


def test_a_stages_tree_alone_drafts_nothing_from_its_request():
    trees = StageTrees(DraftConfig())
    trees.start("x", call((1, 2, 3, 1, 2), ()))
    assert not len(trees.step("x", ids()))
    trees.finish("x", ids(2, 9, 8, END))
    trees.start("y", call((7, 1, 2), ()))
    assert trees.step("y", ids()).token_ids.tolist() == [9, 8, END]  # the match is in the prompt
    trees.start("z", call((7, 1, 2), (), stage="other"))
    assert not len(trees.step("z", ids()))


def test_llma_copies_from_the_prompt_alone():
    llma = PromptLookup(3, 2, 2, only_prompt=True)
    llma.start("x", call((1, 2, 3, 4), ()))
    assert llma.step("x", ids(9, 1, 2)).token_ids.tolist() == [3, 4]  # the prompt ends here
    assert not len(llma.step("x", ids(9, 1)))  # 9 1 occurs only in the response
    llma.finish("x", ids())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "arctic"])
def test_every_method_accepts_nothing_but_the_record(name):
    calls = [call((1, 2, 3, 1, 2), (3, 1, 2, 3), session=str(i)) for i in range(3)]
    tally = replay(calls, METHODS[name].make(Rule()), 2)["s"]
    assert tally.tokens == 15
    # every step adds a token of the model, unless the draft reached the end of the response
    assert tally.tokens <= tally.steps + tally.accepted <= tally.tokens + len(calls)
    assert tally.accepted > 0
