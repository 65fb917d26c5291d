"""Settings of the forest and of one request's drafts. Frozen; checked when made."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.draft import Source
from agentspec.errors import ConfigError
from agentspec.stages import MAX_SEGMENTS

MIB = 1 << 20
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
        max_sessions: most sessions of one tenant; beyond it the one that was idle longest is dropped. While
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
            if getattr(self, name) < 4096:
                raise ConfigError(f"{name} must be at least 4096, not {getattr(self, name)!r}")
        if not 2 <= self.depth <= 1024:
            raise ConfigError(f"depth must be between 2 and 1024, not {self.depth!r}")
        if not 1 <= self.threads <= 64:
            raise ConfigError(f"threads must be between 1 and 64, not {self.threads!r}")
        for source in self.sources:
            if source not in SHARED_SOURCES:
                raise ConfigError(f"sources are {[*SHARED_SOURCES]}, not {source!r}")
        if self.max_trees < 2 * MAX_SEGMENTS:  # one request uses up to eight paths and the tenant's tree
            raise ConfigError(f"max_trees must be at least {2 * MAX_SEGMENTS}, not {self.max_trees!r}")
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions must be at least 1, not {self.max_sessions!r}")
        if self.session_ttl_s <= 0:
            raise ConfigError(f"session_ttl_s must be positive, not {self.session_ttl_s!r}")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How one request is drafted for (paper, Algorithm 1).

    Attributes:
        mode: ``"chain"``, ``"tree"`` or ``"off"``.
        max_tokens: most tokens in one draft, 0 = no drafts.
        alpha: draft at most ``alpha * match_length`` tokens (MAX_SPEC = alpha x p).
        min_match: shortest match, in tokens, that may draft.
        min_prob: a token whose estimated probability D(N) is below this is not drafted.
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

    def __post_init__(self) -> None:
        if self.mode not in ("chain", "tree", "off"):
            raise ConfigError(f"mode must be 'chain', 'tree' or 'off', not {self.mode!r}")
        if not 0 <= self.max_tokens <= 1024:
            raise ConfigError(f"max_tokens must be between 0 and 1024, not {self.max_tokens!r}")
        if not self.alpha > 0:
            raise ConfigError(f"alpha must be positive, not {self.alpha!r}")
        if self.min_match < 1:
            raise ConfigError(f"min_match must be at least 1, not {self.min_match!r}")
        if not 0 <= self.min_prob <= 1:
            raise ConfigError(f"min_prob must be between 0 and 1, not {self.min_prob!r}")
        if not self.doubt >= 0:
            raise ConfigError(f"doubt must not be negative, not {self.doubt!r}")

    @property
    def is_off(self) -> bool:
        """True if this request is never drafted for."""
        return self.mode == "off" or self.max_tokens == 0
