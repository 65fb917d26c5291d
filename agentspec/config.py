"""Settings of the forest and of one request's drafts. Frozen; checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import SupportsIndex, TypeGuard

from agentspec.draft import Source
from agentspec.errors import ConfigError
from agentspec.stages import MAX_SEGMENTS

MIB = 1 << 20
MOST_DRAFT_TOKENS = 1 << 20  # that a call may ask for
_MOST = (1 << 63) - 1
SHARED_SOURCES = (Source.SESSION, Source.STAGE, Source.WORKFLOW, Source.TENANT)


@dataclass(frozen=True, slots=True)
class ForestConfig:
    """Sizes of the trees of one engine process.

    Attributes:
        stage_limit_bytes: budget of one stage's, one parent path's or one tenant's tree.
        session_limit_bytes: budget of one session's tree.
        tenant_limit_bytes: budget of all trees of one tenant together.
        total_limit_bytes: budget of the whole forest.
        depth: longest context, in tokens, whose continuations are counted (paper section 4: the
            depth limit of the tree).
        sources: which shared trees are kept and drafted from, besides each request's own. An output is stored
            once per tree: fewer trees take less memory and time and find fewer drafts.
        threads: how many share out a batch, the caller's included. Drafts don't depend on it. One is enough
            for dozens of live requests; more need cores that nothing else keeps busy.
        max_trees: most trees of stages and parent paths of one tenant; beyond it the one whose last request
            started longest ago is dropped. Bounds what a client can cost that invents a stage per call.
        max_sessions: most sessions of one tenant, of whose trees the idle ones hold at most an eighth of its
            budget; beyond either the one that was idle longest is dropped. While
            requests are live in all of them, one of a new session goes without a session tree.
        session_ttl_s: a session that was idle for so long is dropped.
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
        check_int("depth", self.depth, 2, 1024)
        check_int("threads", self.threads, 1, 64)
        check_int("max_trees", self.max_trees, 2 * MAX_SEGMENTS, _MOST)  # a request uses eight paths and ()
        check_int("max_sessions", self.max_sessions, 1, _MOST)
        check_positive("session_ttl_s", self.session_ttl_s)
        for source in self.sources:
            if source not in SHARED_SOURCES:
                raise ConfigError(f"sources are {[*SHARED_SOURCES]}, not {source!r}")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How one request is drafted for.

    Attributes:
        rule: ``"paper"``: Algorithm 1 of the paper, the draft with the highest score of any one tree.
            ``"learned"``: each token's chance of being accepted is estimated from all trees at once, by a
            model that the stage's requests share and that learns from every step (docs/drafting.md); alpha
            and doubt have no meaning.
        mode: ``"chain"``, ``"tree"`` or ``"off"``.
        max_tokens: most tokens in one draft, 0 = no drafts.
        alpha: draft at most ``alpha * match_length`` tokens (MAX_SPEC = alpha x p).
        min_match: shortest match, in tokens, that may draft.
        min_prob: a token whose estimated probability D(N) is below this is not drafted: the price of
            verifying a token, in accepted tokens.
        doubt: how often something unseen is taken to have followed a context of one token; of longer
            contexts, so often divided by their length. It lowers D(N) where the evidence is thin: one
            occurrence after two tokens is no certainty. 0 = the paper's rule.
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
        """True if this request is never drafted for."""
        return self.mode == "off" or self.max_tokens == 0


def check_int(name: str, value: object, least: int, most: int) -> None:
    """Raise ConfigError, which names the value, if it is no integer or out of range."""
    if not isinstance(value, (int, SupportsIndex)) or not least <= value.__index__() <= most:
        raise ConfigError(f"{name} must be an integer between {least} and {most}, not {value!r}")


def check_prob(name: str, value: object) -> None:
    """Raise ConfigError, which names the value, if it is no number between 0 and 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number between 0 and 1, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Raise ConfigError, which names the value, if it is no positive number or not finite."""
    if not _is_number(value) or not value > 0:
        raise ConfigError(f"{name} must be a positive, finite number, not {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)
