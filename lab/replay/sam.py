"""SAM-Decoding (arXiv 2411.10666): suffix automata find the longest match and its continuation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call
from agentspec.replay.drafter import chain

ROOT = 0
SEPARATOR = -1  # not a token; follows every output in the common automaton


@dataclass(frozen=True, slots=True)
class Match:
    """A string's longest suffix that occurs in a text: its state in the automaton, its length in tokens."""

    state: int = ROOT
    length: int = 0


class SuffixAutomaton:
    """All substrings of a text that grows at its end (Blumer et al., 1984; the paper's appendix A.1).

    A state stands for the strings that end in the same places. Its link leads to the state of their longest
    suffix that ends in more places.

    Args:
        least: shorter strings may be found at an older occurrence than their last.

    A token costs O(1) amortized. In addition, it visits each state of at least ``least`` tokens on the path
    of links from the whole text. The paper avoids these visits: it keeps the first occurrence, which never
    changes. These paths are long only for text that repeats itself immediately, such as one token over and
    over.
    """

    def __init__(self, least: int = 1) -> None:
        self.text: list[int] = []
        self._least = max(least, 1)
        self._whole = ROOT  # the state of the whole text
        # indexed by state:
        self._lengths = [0]  # length of its longest string
        self._links = [-1]
        self._next: list[dict[int, int]] = [{}]  # token -> next state
        self._ends = [0]  # position in the text after its last occurrence

    def append(self, token: int) -> tuple[int, int]:
        """Append a token and return the longest suffix of the text that has occurred before.

        Returns:
            its length, and the position after its previous occurrence. The two occurrences may overlap.
        """
        self.text.append(token)
        new = self._add(len(self.text), {}, len(self.text))
        link = self._links[new] = self._lead(self._whole, token, new)
        self._whole = new
        before = self._lengths[link], self._ends[link]
        self._renew(link)
        return before

    def follow(self, match: Match, token: int) -> Match:
        """Extend a match by one token (algorithm 1). O(1) amortized.

        If the text has grown since the match was found, it is still a match, but there may be a longer one.
        """
        state, length = match.state, match.length
        while length and token not in self._next[state]:
            state = self._links[state]
            length = min(length, self._lengths[state])
        following = self._next[state].get(token)
        return Match() if following is None else Match(following, length + 1)

    def end(self, match: Match) -> int:
        """Return the position in the text after the match's last occurrence."""
        state = match.state
        while match.length and match.length <= self._lengths[self._links[state]]:
            state = self._links[state]  # strings of this length were split off since
        return self._ends[state]

    def _add(self, length: int, following: dict[int, int], end: int) -> int:
        self._lengths.append(length)
        self._links.append(-1)
        self._next.append(following)
        self._ends.append(end)
        return len(self._lengths) - 1

    def _lead(self, state: int, token: int, new: int) -> int:
        """Add a transition to the new state in every state that has none. Return the new state's link."""
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        if state < 0:
            return ROOT
        target = self._next[state][token]
        if self._lengths[target] == self._lengths[state] + 1:
            return target
        return self._split(state, token, target)

    def _split(self, state: int, token: int, target: int) -> int:
        """Split off a state for the target's strings that are no longer than the state's plus the token."""
        shorter = self._add(self._lengths[state] + 1, dict(self._next[target]), self._ends[target])
        self._links[shorter] = self._links[target]
        self._links[target] = shorter
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = shorter
            state = self._links[state]
        return shorter

    def _renew(self, state: int) -> None:
        """Mark the state's strings and all their suffixes as having just occurred."""
        while self._lengths[state] >= self._least:
            self._ends[state] = len(self.text)
            state = self._links[state]


@dataclass(slots=True)
class _Request:
    own: SuffixAutomaton
    length: int = 0  # length of the longest suffix that has occurred before
    end: int = 0
    common: Match = field(default_factory=Match)
    output: list[int] = field(default_factory=list)


class SuffixAutomata:
    """An automaton of each call's own text and a common one of all finished outputs.

    The draft is the continuation of the longest match in the call's own text. The common automaton's match is
    used if it is longer by more than ``bias`` (section 3.2). Of several occurrences the last counts. A match
    below ``least`` tokens drafts no tokens. Outputs that finish while a call runs are matched with its later
    tokens.

    The paper differs: it builds the common automaton beforehand, takes the first occurrence and drafts a tree
    from the common automaton. Its limits of 5 assume a second method, which drafts where matches are short.
    Without a second method it has a bias of 0 (section 4) and must use short matches: ``least=1, bias=0``.
    """

    def __init__(self, num_draft: int, least: int = 5, bias: int = 5) -> None:
        self._num_draft = num_draft
        self._least = least
        self._bias = bias
        self._common = SuffixAutomaton(least)
        self._requests: dict[str, _Request] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The text is initially the prompt."""
        request = self._requests[name] = _Request(SuffixAutomaton(self._least))
        self._extend(request, call.prompt.tolist())

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Copy the tokens that followed the better match."""
        request = self._requests[name]
        self._take(request, accepted)
        if request.common.length > max(request.length + self._bias, self._least - 1):
            copied = self._copy(self._common, self._common.end(request.common))
            return chain(copied, request.common.length, Source.TENANT)
        if request.length >= self._least:
            return chain(self._copy(request.own, request.end), request.length)
        return Draft()

    def finish(self, name: str, accepted: Tokens) -> None:
        """Finish a call and add its output to the common text."""
        request = self._requests.pop(name)
        self._take(request, accepted)
        for token in [*request.output, SEPARATOR]:
            self._common.append(token)

    def _take(self, request: _Request, accepted: Tokens) -> None:
        tokens = accepted.tolist()
        request.output += tokens
        self._extend(request, tokens)

    def _extend(self, request: _Request, tokens: list[int]) -> None:
        for token in tokens:
            request.length, request.end = request.own.append(token)
            request.common = self._common.follow(request.common, token)

    def _copy(self, automaton: SuffixAutomaton, begin: int) -> Tokens:
        """Return the text from ``begin`` on, up to the length of a draft and the end of one output."""
        copied = automaton.text[begin : begin + self._num_draft]
        if SEPARATOR in copied:
            del copied[copied.index(SEPARATOR) :]
        return np.array(copied, np.int32)
