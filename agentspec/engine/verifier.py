"""Verification of drafts against the model's own tokens. Lossless by construction.

Let ``p_t`` be the model's full sampling distribution at output position ``t`` given the accepted
prefix, and ``e_t`` the random numbers of that position (``sampler``). Without drafts the output is
``token_t``, the winner of a race between all tokens by ``p_t`` and ``e_t``. With a draft, one forward
pass gives the logits at every node of the draft together, and verification computes **the same function
at the same position** along the path it walks:

1. At a node, the winner, ``target``, is the token that decoding without drafts would produce there.
2. A child of the node holds ``target``: that child is accepted; continue there.
   This happens with probability ``p(x)`` for a single child ``x`` (and with the sum of ``p`` over the
   children of a tree node), which is what rejection sampling would accept: a draft token is a
   deterministic proposal ``q = [x]``, whose acceptance probability is ``min(1, p(x)/q(x)) = p(x)``.
   It is also the most that any lossless rule can accept.
3. No child holds it: ``target`` is put out in place of the draft, and the walk ends.
   Given that the children ``C`` were rejected, ``target`` is distributed as ``p(y) / (1 - p(C))`` for
   ``y`` not in ``C``: exactly the residual distribution. No second draw is needed.
4. The walk reached a leaf: all of its path is accepted and ``target`` is the bonus token. It is the
   same case as 3 with ``C`` empty.

So rejection sampling with residuals is coupled to the plain sampler through ``e_t``. The output has
the right distribution because every token is the plain sampler's token, and more: for a given seed it
is *identical*, token by token, with drafting off, on, as a chain and as a tree. Greedy decoding is
the case where the argmax wins. Penalties and grammars enter ``p_t`` through the path to the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from agentspec.draft import Draft
from agentspec.engine.sampling.sampler import choose
from agentspec.engine.sampling.state import SamplerState


@dataclass(slots=True)
class Verdict:
    """The tokens that one forward pass added to one output.

    Attributes:
        token_ids: the accepted draft tokens, then the model's own next token: at least one.
        path: index in the draft of each accepted token, from the root down.
        rows: row of the logits that decided on each of ``token_ids``.
    """

    token_ids: list[int]
    path: list[int]
    rows: list[int]


def verify(logits: Tensor, states: Sequence[SamplerState], drafts: Sequence[Draft]) -> list[Verdict]:
    """Verify every output's draft against the logits of one forward pass.

    Output ``i`` owns the next ``1 + len(drafts[i])`` rows of ``logits`` ``[m, vocab]``: the last accepted
    token, then its draft tokens in order. An empty draft is a plain decode step. Nothing is changed:
    committing the verdicts is the caller's.
    """
    targets = choose(logits, states, drafts).tolist()
    verdicts = []
    row = 0
    for draft in drafts:
        end = row + 1 + len(draft)
        verdicts.append(_walk(targets[row:end], draft, row))
        row = end
    return verdicts


def _walk(targets: list[int], draft: Draft, first_row: int) -> Verdict:
    """Follow the targets down the draft.

    One sweep over the nodes is enough: a parent comes before its children, so a node that extends the
    path follows it. Of two equal siblings the first is taken.
    """
    path: list[int] = []
    token_ids = targets[:1]
    here = -1
    for node, (parent, token) in enumerate(
        zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True)
    ):
        if parent == here and token == token_ids[-1]:
            here = node
            path.append(node)
            token_ids.append(targets[1 + node])
    return Verdict(token_ids, path, [first_row, *(first_row + 1 + node for node in path)])
