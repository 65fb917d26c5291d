"""Unclustered prompts, which are compared to find groups of similar ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentspec.gateway.discovery.cluster import Member
from agentspec.gateway.discovery.fingerprint import DIGEST_BYTES, Fingerprint
from agentspec.gateway.discovery.templates import Sketch

MAX_PROMPTS = 128
FEWEST_ALIKE = 6  # prompts needed for a template if they hardly differ
MORE_ALIKE = 12  # additional prompts needed if they have nearly nothing in common
RECURRING_SHARE = 4  # factor on both if the prompts are recurring
NEIGHBOUR_SHARE = 0.5  # least similarity of a neighbour, relative to the nearest one
MAX_ENDINGS = 1024
NUM_ALIKE_ENDINGS = 3


@dataclass(frozen=True, slots=True)
class UnclusteredPrompt:
    """A prompt that is kept for comparison. Prompts of different shapes are not compared."""

    member: Member
    fingerprint: Fingerprint
    shape: bytes
    sketch: Sketch

    @property
    def is_unclustered(self) -> bool:
        """True if the prompt may still become a member of a template's cluster."""
        cluster = self.member.cluster
        is_taken = cluster is not None and (cluster.is_recurring or not cluster.is_free)
        return not (is_taken or self.member.is_recurring)


class UnclusteredPrompts:
    """The latest unclustered prompts of one tenant, and counts of the last lines of users' texts."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[bytes, UnclusteredPrompt] = OrderedDict()
        self._num_ending: dict[bytes, int] = {}  # number of prompts by cue, the latest cue last

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[UnclusteredPrompt]:
        return iter(list(self._prompts.values()))

    def shape(self, fingerprint: Fingerprint) -> bytes:
        """Return the shape that prompts must share to be compared. Includes the cue if that is frequent."""
        is_cue = self._num_ending.get(fingerprint.cue, 0) >= NUM_ALIKE_ENDINGS
        return fingerprint.shape + fingerprint.cue if is_cue else fingerprint.shape

    def note_ending(self, fingerprint: Fingerprint) -> None:
        """Count the cue of one more prompt."""
        cue = fingerprint.cue
        if not cue:
            return
        self._num_ending[cue] = self._num_ending.pop(cue, 0) + 1
        if len(self._num_ending) > MAX_ENDINGS:
            del self._num_ending[next(iter(self._num_ending))]
        if self._num_ending[cue] == NUM_ALIKE_ENDINGS:  # the shapes of earlier prompts now include it
            for digest, prompt in self._prompts.items():
                if prompt.fingerprint.cue == cue:
                    self._prompts[digest] = replace(prompt, shape=self.shape(prompt.fingerprint))

    def keep_ending(self, shape: bytes) -> None:
        """Mark the cue in the shape of a saved template as frequent."""
        if cue := shape[DIGEST_BYTES:]:
            self._num_ending.setdefault(cue, NUM_ALIKE_ENDINGS)

    def add(self, member: Member, fingerprint: Fingerprint) -> list[UnclusteredPrompt]:
        """Keep a prompt and return its neighbours, if they are enough for a template."""
        prompt = UnclusteredPrompt(member, fingerprint, self.shape(fingerprint), Sketch.of(fingerprint.words))
        neighbours = self._neighbours(prompt)
        self._prompts[member.digest] = prompt
        while len(self._prompts) > MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return neighbours

    def remove(self, digest: bytes) -> None:
        """Remove a prompt if present."""
        self._prompts.pop(digest, None)

    def _neighbours(self, prompt: UnclusteredPrompt) -> list[UnclusteredPrompt]:
        """Return the prompts about as similar as the nearest one; empty if too few for a template.

        Recurring prompts count only in large numbers: they then differ in a slot that few sessions share.
        """
        others = [one for one in self._prompts.values() if one.shape == prompt.shape]
        if not others:
            return []
        near = [(prompt.sketch.num_common(one.sketch), one) for one in others]
        near.sort(key=lambda pair: -pair[0])
        most = near[0][0]
        neighbours = [one for common, one in near if common >= NEIGHBOUR_SHARE * most > 0]
        num_enough = FEWEST_ALIKE + MORE_ALIKE * (1 - min(most / prompt.sketch.num_pairs, 1))
        unclustered = [one for one in neighbours if one.is_unclustered]
        if len(unclustered) + 1 >= num_enough:
            return unclustered
        return neighbours if len(neighbours) + 1 >= RECURRING_SHARE * num_enough else []
