"""A cluster: fingerprints that are one stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agentspec.gateway.discovery.templates import Template
from agentspec.stages import StageKey

NUM_STANDING = 3  # conversations after which a prompt stands for itself


@dataclass(slots=True, eq=False)
class Member:
    """One fingerprint, and the cluster it is in.

    ``num_openings`` counts how often another conversation than the last one came with it.
    """

    digest: bytes
    is_system: bool
    cluster: Cluster | None = None
    num_requests: int = 0
    num_openings: int = 0
    last_opening: int | None = None

    def count(self, opening: int) -> None:
        """One more request, of the conversation that ``opening`` stands for."""
        self.num_requests += 1
        if opening != self.last_opening:
            self.last_opening = opening
            self.num_openings += 1
        if self.cluster is not None:
            self.cluster.num_requests += 1
            self.cluster.last_seen_s = time.time()

    @property
    def is_standing(self) -> bool:
        """Whether it was seen in enough conversations to be no instance of anything."""
        return self.is_system and self.num_openings >= NUM_STANDING


@dataclass(slots=True, eq=False)
class Cluster:
    """Fingerprints that are one stage.

    Attributes:
        stage: where its requests go: ``own_stage``, or what a person named.
        is_settled: people merged or split it; nothing but they changes what is in it.
        templates: with the shape of the prompts each is for.
        text: what its prompts say, masked.
        num_saved: requests that the file knows of.
        is_saved: the file knows of the cluster; if it does not any more, somebody else took it out.
    """

    id: str
    own_stage: StageKey
    stage: StageKey
    is_named: bool = False
    is_pinned: bool = False
    is_settled: bool = False
    text: str = ""
    num_requests: int = 0
    last_seen_s: float = field(default_factory=time.time)
    members: dict[bytes, Member] = field(default_factory=dict)
    templates: list[tuple[bytes, Template]] = field(default_factory=list)
    num_saved: int = 0
    is_saved: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it may be changed without being asked for."""
        return not (self.is_named or self.is_pinned or self.is_settled)

    @property
    def is_standing(self) -> bool:
        """Whether it is more than one prompt of one conversation."""
        members = self.members.values()
        return bool(self.templates) or len(members) > 1 or any(member.is_standing for member in members)
