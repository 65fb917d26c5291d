"""Clusters of fingerprints, and their members."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agentspec.gateway.discovery.answers import Answers
from agentspec.gateway.discovery.frames import Frame
from agentspec.gateway.discovery.templates import Template
from agentspec.stages import StageKey

NUM_STANDING = 3  # a prompt seen in this many conversations is recurring
FEWEST_KEPT = 6  # with fewer prompts, their common text may be a single user's data, and is not stored


@dataclass(slots=True, eq=False)
class Member:
    """One fingerprint and its cluster.

    Attributes:
        num_openings: one plus the number of times that a request was of another conversation than the last
            one.
    """

    digest: bytes
    is_system: bool
    cluster: Cluster | None = None
    num_requests: int = 0
    num_openings: int = 0
    last_opening: int | None = None

    def count(self, opening: int) -> None:
        """Count one more request, of the conversation that ``opening`` identifies."""
        self.num_requests += 1
        if opening != self.last_opening:
            self.last_opening = opening
            self.num_openings += 1
        if self.cluster is not None:
            self.cluster.num_requests += 1
            self.cluster.last_seen_s = time.time()

    @property
    def is_recurring(self) -> bool:
        """True if the prompt was seen in too many conversations to be an instance of a template."""
        return self.is_system and self.num_openings >= NUM_STANDING


@dataclass(slots=True, eq=False)
class Cluster:
    """A set of fingerprints that form one stage.

    Attributes:
        stage: stage of the cluster's requests: ``own_stage``, or the stage that a user named.
        is_user_edited: True if a user merged or split the cluster. Then only users change its contents.
        frames: common content of its prompts: one frame per shape, and per cluster that was merged into it.
        text: masked text of its prompts.
        answers: a sample of the answers to its prompts.
        num_saved: number of requests in the file.
        is_saved: True if the file contained the cluster. If the file lacks it later, another process removed
            it.
    """

    id: str
    own_stage: StageKey
    stage: StageKey
    is_named: bool = False
    is_pinned: bool = False
    is_user_edited: bool = False
    text: str = ""
    num_requests: int = 0
    last_seen_s: float = field(default_factory=time.time)
    members: dict[bytes, Member] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers, repr=False)
    num_saved: int = 0
    is_saved: bool = False

    @property
    def templates(self) -> list[tuple[bytes, Template]]:
        """Pairs of a shape and the template for prompts of that shape."""
        return [(frame.shape, frame.template) for frame in self.frames if frame.template is not None]

    @property
    def is_free(self) -> bool:
        """True if no user has named, pinned or edited it, so that discovery may change it."""
        return not (self.is_named or self.is_pinned or self.is_user_edited)

    @property
    def is_recurring(self) -> bool:
        """True if recurring: it holds more than one prompt, or a prompt of many conversations."""
        members = self.members.values()
        return len(members) > 1 or any(member.is_recurring for member in members)

    @property
    def is_text_kept(self) -> bool:
        """True if its text may be stored, since many prompts share it or the prompt recurs."""
        members = self.members.values()
        return len(members) >= FEWEST_KEPT or (
            len(members) == 1 and any(member.is_recurring for member in members)
        )
