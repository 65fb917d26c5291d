"""Settings of the forest and of one request's drafts. Frozen, and validated on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import SupportsIndex, TypeGuard

from agentspec.draft import Source
from agentspec.errors import ConfigError
from agentspec.stages import MAX_SEGMENTS

MIB = 1 << 20
OWN_HEADS = "mtp"  # as a draft model: the heads that the served model's checkpoint has
MOST_DRAFT_TOKENS = 1 << 20  # upper limit of ``max_tokens`` in a call
_MOST = (1 << 63) - 1
SHARED_SOURCES = (Source.SESSION, Source.STAGE, Source.WORKFLOW, Source.TENANT)


@dataclass(frozen=True, slots=True)
class ForestConfig:
    """Sizes of the trees in one engine.

    Attributes:
        stage_limit_bytes: budget of the tree of one stage, one parent path or one tenant.
        session_limit_bytes: budget of one session's tree.
        tenant_limit_bytes: budget of all trees of one tenant together.
        total_limit_bytes: budget of the whole forest.
        depth: longest context, in tokens, for which continuations are counted (paper section 4: the
            depth limit of the tree).
        sources: shared trees to keep and to draft from, in addition to each request's own tree. Each tree
            stores its own copy of an output. Fewer trees take less memory and time and find fewer drafts.
        threads: number of threads that share a batch, including the calling thread. Drafts do not depend
            on it. One is enough for dozens of live requests. More threads need otherwise idle cores.
        max_trees: most trees of stages and parent paths of one tenant. Beyond it, the tree with the oldest
            last request start is dropped. This bounds the cost of a client that uses a new stage per call.
        max_sessions: most sessions of one tenant. The trees of its idle sessions hold at most an
            eighth of its budget. Beyond either limit, the session idle for longest is dropped. If every
            session has live requests, a request of a new session runs without a session tree.
        session_ttl_s: idle time in seconds after which a session is dropped. Outputs of sessions that other
            engines serve wait as long for a request here, within an extra 1/64 of the total budget.
    """

    stage_limit_bytes: int = 64 * MIB
    session_limit_bytes: int = 4 * MIB
    tenant_limit_bytes: int = 512 * MIB
    total_limit_bytes: int = 1024 * MIB
    depth: int = 64
    sources: tuple[Source, ...] = SHARED_SOURCES
    threads: int = 1
    max_trees: int = 4096
    max_sessions: int = 4096
    session_ttl_s: float = 900.0

    def __post_init__(self) -> None:
        for name in ("stage_limit_bytes", "session_limit_bytes", "tenant_limit_bytes", "total_limit_bytes"):
            check_int(name, getattr(self, name), 4096, _MOST)
        check_int("depth", self.depth, 2, 510)
        check_int("threads", self.threads, 1, 64)
        check_int("max_trees", self.max_trees, 2 * MAX_SEGMENTS, _MOST)  # a request uses eight paths and ()
        check_int("max_sessions", self.max_sessions, 1, _MOST)
        check_positive("session_ttl_s", self.session_ttl_s)
        for source in self.sources:
            if source not in SHARED_SOURCES:
                raise ConfigError(f"sources are {[*SHARED_SOURCES]}, not {source!r}")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Draft settings of one request.

    Attributes:
        rule: ``"paper"``: Algorithm 1 of the paper, the draft with the highest score of any one tree.
            ``"learned"``: a model estimates each token's chance of acceptance from all trees together.
            The stage's requests share the model, and it learns from every step (docs/drafting.md). This
            rule ignores alpha and doubt.
        mode: ``"chain"``, ``"tree"`` or ``"off"``.
        max_tokens: most tokens in one draft, 0 = no drafts.
        alpha: draft at most ``alpha * match_length`` tokens (MAX_SPEC = alpha x p).
        min_match: shortest match, in tokens, that may draft.
        min_prob: least estimated probability D(N) of a drafted token. It is the cost of verifying a token, in
            accepted tokens.
        doubt: assumed count of unseen continuations after a context of one token. For a longer context it is
            divided by the context length. It lowers D(N) where there is little evidence, for example after
            one occurrence of two tokens. 0 = the paper's rule.
    """

    mode: str = "chain"
    max_tokens: int = 32
    alpha: float = 4.0
    min_match: int = 1
    min_prob: float = 0.1
    doubt: float = 0.0
    rule: str = "paper"

    def __post_init__(self) -> None:
        if self.mode not in ("chain", "tree", "off"):
            raise ConfigError(f"mode must be 'chain', 'tree' or 'off', not {self.mode!r}")
        if self.rule not in ("paper", "learned"):
            raise ConfigError(f"rule must be 'paper' or 'learned', not {self.rule!r}")
        check_int("max_tokens", self.max_tokens, 0, 1024)
        check_positive("alpha", self.alpha)
        check_int("min_match", self.min_match, 1, 1 << 20)
        check_prob("min_prob", self.min_prob)
        if not _is_number(self.doubt) or self.doubt < 0:
            raise ConfigError(f"doubt must be 0 or a positive, finite number, not {self.doubt!r}")

    @property
    def is_off(self) -> bool:
        """True if this request never gets a draft."""
        return self.mode == "off" or self.max_tokens == 0


def check_int(name: str, value: object, least: int, most: int) -> None:
    """Raise ConfigError with the value's name if it is not an integer or out of range."""
    if not isinstance(value, (int, SupportsIndex)) or not least <= value.__index__() <= most:
        raise ConfigError(f"{name} must be an integer between {least} and {most}, not {value!r}")


def check_prob(name: str, value: object) -> None:
    """Raise ConfigError with the value's name if it is not a number between 0 and 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number between 0 and 1, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Raise ConfigError with the value's name if it is not a positive, finite number."""
    if not _is_number(value) or not value > 0:
        raise ConfigError(f"{name} must be a positive, finite number, not {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)
