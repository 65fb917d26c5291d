from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from agentspec.draft import Draft
from agentspec.engine.sampling.sampler import choose
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.verifier import Verdict, verify
from agentspec.generation import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def draft_of(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Draft:
    parents = range(-1, len(tokens) - 1) if parents is None else parents
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(len(tokens), np.float32))


def verify_greedy(targets: Sequence[int], draft: Draft) -> Verdict:
    """Verify a draft where ``targets`` are the model's most likely tokens at the root and at each node."""
    logits = torch.nn.functional.one_hot(torch.tensor(targets), 10).float()
    return verify(logits, [SamplerState(GREEDY)], [draft])[0]


def test_no_draft_is_a_plain_step() -> None:
    assert verify_greedy([4], Draft()) == Verdict([4], [], [0])


def test_a_right_chain_is_accepted_with_a_bonus_token() -> None:
    assert verify_greedy([1, 2, 3, 4], draft_of([1, 2, 3])) == Verdict([1, 2, 3, 4], [0, 1, 2], [0, 1, 2, 3])


def test_a_chain_is_accepted_up_to_its_first_wrong_token() -> None:
    # the 3 after the wrong 9 would be "right" at its own node, but is never reached
    assert verify_greedy([1, 2, 3, 3], draft_of([1, 9, 3])) == Verdict([1, 2], [0], [0, 1])


def test_a_wrong_chain_yields_the_models_token() -> None:
    assert verify_greedy([5, 1, 1], draft_of([1, 1])) == Verdict([5], [], [0])


#   root ─┬─ 0: token 1 ─┬─ 2: token 5
#         │              └─ 3: token 6 ── 5: token 8
#         └─ 1: token 2 ─── 4: token 7
TREE = draft_of([1, 2, 5, 6, 7, 8], [-1, -1, 0, 0, 1, 3])


@pytest.mark.parametrize(
    ("targets", "verdict"),
    [
        ([1, 6, 0, 0, 8, 0, 9], Verdict([1, 6, 8, 9], [0, 3, 5], [0, 1, 4, 6])),
        ([1, 5, 0, 4, 0, 0, 0], Verdict([1, 5, 4], [0, 2], [0, 1, 3])),
        ([2, 0, 7, 0, 0, 3, 0], Verdict([2, 7, 3], [1, 4], [0, 2, 5])),
        ([2, 0, 6, 0, 0, 0, 0], Verdict([2, 6], [1], [0, 2])),
        ([3, 6, 7, 8, 8, 8, 8], Verdict([3], [], [0])),
    ],
)
def test_a_tree_is_walked_along_the_models_choices(targets: list[int], verdict: Verdict) -> None:
    assert verify_greedy(targets, TREE) == verdict


def test_equal_siblings_do_no_harm() -> None:
    draft = draft_of([1, 1, 2, 3], [-1, -1, 0, 1])
    assert verify_greedy([1, 2, 2, 4, 4], draft) == Verdict([1, 2, 4], [0, 2], [0, 1, 3])


def test_rows_of_a_batch_keep_apart() -> None:
    targets = [1, 2, 3, 7, 1, 6, 0, 0, 8, 0, 9]
    logits = torch.nn.functional.one_hot(torch.tensor(targets), 10).float()
    states = [SamplerState(GREEDY) for _ in range(3)]
    first, second, third = verify(logits, states, [draft_of([1, 2]), Draft(), TREE])
    assert first == Verdict([1, 2, 3], [0, 1], [0, 1, 2])
    assert second == Verdict([7], [], [3])
    assert third == Verdict([1, 6, 8, 9], [0, 3, 5], [4, 5, 8, 10])


# --- sampling: outputs of LENGTH tokens over VOCAB tokens by a model with a memory -----------------

VOCAB = 4
LENGTH = 3
BATCH = 4000

Context = tuple[int, ...]
_rng = np.random.default_rng(11)
LOGITS = {  # the model: its logits after every possible output
    context: _rng.normal(scale=1.2, size=VOCAB)
    for length in range(LENGTH + 1)
    for context in itertools.product(range(VOCAB), repeat=length)
}
PARAMS = {
    "plain": SamplingParams(),
    "filtered": SamplingParams(temperature=0.9, top_p=0.95, top_k=3, min_p=0.02),
    "penalized": SamplingParams(
        temperature=1.3, top_p=0.97, top_k=3, min_p=0.02, presence_penalty=0.7, frequency_penalty=0.4
    ),
}
DRAFTS = {  # good tokens and bad ones, deep and flat
    "chain": draft_of([2, 0, 1]),
    "tree": draft_of([2, 0, 1, 3, 0, 2], [-1, -1, 0, 0, 1, 2]),
    "every_child": draft_of([0, 1, 2, 3], [-1, -1, -1, -1]),
}


def exact_next(params: SamplingParams, context: Context) -> np.ndarray:
    """Compute the next token's distribution without torch and without the sampler."""
    logits = LOGITS[context].copy()
    for token in range(VOCAB):
        count = context.count(token)
        logits[token] -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
    probs = np.exp(logits / params.temperature)
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    order = np.argsort(-probs)
    if params.top_k:
        probs[order[params.top_k :]] = 0
    probs /= probs.sum()
    needed = int(np.searchsorted(np.cumsum(probs[order]), params.top_p)) + 1
    probs[order[needed:]] = 0
    return probs / probs.sum()


def exact_outputs(params: SamplingParams) -> dict[Context, float]:
    outputs: dict[Context, float] = {(): 1.0}
    for _ in range(LENGTH):
        outputs = {
            (*context, token): p * q
            for context, p in outputs.items()
            for token, q in enumerate(exact_next(params, context))
        }
    return outputs


def node_logits(context: Context, draft: Draft) -> list[np.ndarray]:
    """Return the model's logits at the root and at every draft token after ``context``."""
    contexts = [context]
    for parent, token in zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True):
        contexts.append((*contexts[1 + parent], token))
    return [LOGITS[c[:LENGTH]] for c in contexts]


def decode(params: SamplingParams, draft: Draft, seeds: Sequence[int]) -> list[Context]:
    """Decode one output per seed with the real verifier, drafting anew in every step."""
    states = [SamplerState(params, seed) for seed in seeds]
    while open_ := [state for state in states if len(state.output_ids) < LENGTH]:
        logits = np.concatenate([node_logits(tuple(state.output_ids), draft) for state in open_])
        verdicts = verify(torch.from_numpy(logits).float(), open_, [draft] * len(open_))
        for state, verdict in zip(open_, verdicts, strict=True):
            state.output_ids.extend(verdict.token_ids)
    return [tuple(state.output_ids[:LENGTH]) for state in states]


@pytest.mark.parametrize(
    ("shape", "kind", "num_draws"),
    [
        ("chain", "filtered", 100_000),
        ("tree", "filtered", 100_000),
        ("every_child", "plain", 100_000),
        ("tree", "penalized", 20_000),
    ],
)
def test_sampled_outputs_have_the_exact_distribution(shape: str, kind: str, num_draws: int) -> None:
    draft, params = DRAFTS[shape], PARAMS[kind]
    counts: Counter[Context] = Counter()
    for first in range(0, num_draws, BATCH):
        counts.update(decode(params, draft, range(first, first + BATCH)))
    assert counts.total() == num_draws
    expected = {output: p * num_draws for output, p in exact_outputs(params).items()}
    possible = [output for output, number in expected.items() if number > 0]
    assert set(counts) <= set(possible)
    # chi-square over all outputs; those too rare for the approximation share one cell
    frequent = [output for output in possible if expected[output] >= 5]
    observed, exact = ([values[o] for o in frequent] for values in (counts, expected))
    if len(frequent) < len(possible):
        observed.append(num_draws - sum(observed))
        exact.append(num_draws - sum(exact))
    assert len(exact) > 8
    assert stats.chisquare(observed, exact).pvalue > 1e-4


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_a_seed_gives_the_same_output_with_and_without_drafts(params: SamplingParams) -> None:
    plain = decode(params, Draft(), range(2000))
    assert len(set(plain)) > 10
    for draft in DRAFTS.values():
        assert decode(params, draft, range(2000)) == plain


def test_a_draft_token_is_accepted_with_the_models_probability_of_it() -> None:
    params = PARAMS["plain"]
    exact = exact_next(params, ())
    size = 100_000
    logits = torch.from_numpy(np.tile(np.stack(node_logits((), draft_of([2]))), (size, 1)))
    states = [SamplerState(params, seed) for seed in range(size)]
    verdicts = verify(logits, states, [draft_of([2])] * size)
    accepted = sum(len(verdict.path) for verdict in verdicts)
    assert stats.binomtest(accepted, size, exact[2]).pvalue > 1e-4
    # the replacement of a rejected token follows the residual: p without it, renormalized
    replaced = Counter(verdict.token_ids[0] for verdict in verdicts if not verdict.path)
    residual = exact * (np.arange(VOCAB) != 2)
    residual /= residual.sum()
    others = [0, 1, 3]
    observed = [replaced[token] for token in others]
    assert replaced[2] == 0
    assert stats.chisquare(observed, residual[others] * sum(observed)).pvalue > 1e-4


def test_verification_leaves_its_input_alone() -> None:
    logits = torch.randn(4, VOCAB)
    before = logits.clone()
    state = SamplerState(PARAMS["penalized"], 5, [1, 2])
    verify(logits, [state], [draft_of([2, 0, 1])])
    assert torch.equal(logits, before)
    assert state.output_ids == [1, 2]


def test_the_same_draft_twice_is_judged_alike() -> None:
    logits = torch.randn(7, VOCAB)
    draft = DRAFTS["tree"]
    targets = [choose(logits, [SamplerState(PARAMS["filtered"], 9, [0])], [draft]).tolist() for _ in range(2)]
    assert targets[0] == targets[1]
