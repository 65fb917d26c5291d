"""Prompts whose words are remembered, so that those that are alike find each other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentspec.gateway.discovery.cluster import Member
from agentspec.gateway.discovery.fingerprint import DIGEST_BYTES, Fingerprint
from agentspec.gateway.discovery.templates import Sketch

MAX_PROMPTS = 128
FEWEST_ALIKE = 6  # prompts that make a template if they differ in little
MORE_ALIKE = 12  # and so many more if they differ in nearly all
STANDING_ALIKE = 4  # times as many, if they stand for themselves
KINSHIP = 0.5  # kin have so much of what the nearest has in common
MAX_ENDINGS = 1024
NUM_ALIKE_ENDINGS = 3


@dataclass(frozen=True, slots=True)
class UnclusteredPrompt:
    """A prompt whose words are remembered. Prompts of different shapes are not compared."""

    member: Member
    fingerprint: Fingerprint
    shape: bytes
    sketch: Sketch

    @property
    def is_loose(self) -> bool:
        """Whether it may still become part of a template's cluster."""
        cluster = self.member.cluster
        is_taken = cluster is not None and (cluster.is_standing or not cluster.is_free)
        return not (is_taken or self.member.is_standing)


class UnclusteredPrompts:
    """The last prompts of one tenant that had no place yet, and how users' texts end."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[bytes, UnclusteredPrompt] = OrderedDict()
        self._num_ending: dict[bytes, int] = {}  # prompts by their cue, that seen last at the end

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[UnclusteredPrompt]:
        return iter(list(self._prompts.values()))

    def shape(self, fingerprint: Fingerprint) -> bytes:
        """What prompts must share to be compared: also how they end, if many different ones end so."""
        is_cue = self._num_ending.get(fingerprint.cue, 0) >= NUM_ALIKE_ENDINGS
        return fingerprint.shape + fingerprint.cue if is_cue else fingerprint.shape

    def note_ending(self, fingerprint: Fingerprint) -> None:
        """That one more prompt ends so."""
        cue = fingerprint.cue
        if not cue:
            return
        self._num_ending[cue] = self._num_ending.pop(cue, 0) + 1
        if len(self._num_ending) > MAX_ENDINGS:
            del self._num_ending[next(iter(self._num_ending))]
        if self._num_ending[cue] == NUM_ALIKE_ENDINGS:  # those before had to wait for that
            for digest, prompt in self._prompts.items():
                if prompt.fingerprint.cue == cue:
                    self._prompts[digest] = replace(prompt, shape=self.shape(prompt.fingerprint))

    def keep_ending(self, shape: bytes) -> None:
        """That prompts end as the shape of a template says, which was saved."""
        if cue := shape[DIGEST_BYTES:]:
            self._num_ending.setdefault(cue, NUM_ALIKE_ENDINGS)

    def add(self, member: Member, fingerprint: Fingerprint) -> list[UnclusteredPrompt]:
        """Remember a prompt; those that it makes a template with, if they are enough by now."""
        prompt = UnclusteredPrompt(member, fingerprint, self.shape(fingerprint), Sketch.of(fingerprint.words))
        kin = self._kin(prompt)
        self._prompts[member.digest] = prompt
        while len(self._prompts) > MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return kin

    def remove(self, digest: bytes) -> None:
        """Forget a prompt, if it is one of these."""
        self._prompts.pop(digest, None)

    def _kin(self, prompt: UnclusteredPrompt) -> list[UnclusteredPrompt]:
        """Prompts about as near to this one as the nearest is; none if there are too few to tell a template.

        Prompts that stand for themselves count if there are a great many: a slot that few sessions share.
        """
        others = [one for one in self._prompts.values() if one.shape == prompt.shape]
        if not others:
            return []
        near = [(prompt.sketch.num_common(one.sketch), one) for one in others]
        near.sort(key=lambda pair: -pair[0])
        most = near[0][0]
        kin = [one for common, one in near if common >= KINSHIP * most > 0]
        num_enough = FEWEST_ALIKE + MORE_ALIKE * (1 - min(most / prompt.sketch.num_pairs, 1))
        loose = [one for one in kin if one.is_loose]
        if len(loose) + 1 >= num_enough:
            return loose
        return kin if len(kin) + 1 >= STANDING_ALIKE * num_enough else []
