"""The methods that are compared: ours, and Drain3 behind the same masking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from agentspec.gateway.discovery.fingerprint import Fingerprint, read_features
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.settings import DiscoverySettings

TENANT = "bench"
MAX_CLUSTERS = 1000  # who_and_when has a separate prompt for each of a hundred experts
NO_STAGE = "default"
_KEY = b"bench"

Body = Mapping[str, Any]


class Method(Protocol):
    """A way to group calls, fed one by one."""

    def see(self, body: Body, answer: str = "") -> str:
        """Return the group of the next call, as known so far. ``answer``: what it is answered, if known."""

    def label(self, body: Body) -> str:
        """Return the group of a call, after all were seen."""


class Ours:
    """``Discovery`` without a thread: it catches up after each call."""

    def __init__(self) -> None:
        self._discovery = Discovery(DiscoverySettings(max_clusters=MAX_CLUSTERS), in_background=False)

    def see(self, body: Body, answer: str = "") -> str:
        """See :class:`Method`."""
        stage = self._discovery.stage_of(TENANT, body)
        self._discovery.catch_up()
        listener = self._discovery.listener(body, 0) if answer else None
        if listener is not None:
            listener(json.dumps({"choices": [{"text": answer}]}).encode())
            self._discovery.hear(listener)
            self._discovery.catch_up()
        return stage.name if stage else NO_STAGE

    def label(self, body: Body) -> str:
        """See :class:`Method`."""
        stage = self._discovery.stage_of(TENANT, body)
        return stage.name if stage else NO_STAGE


class Drain:
    """Drain3's templates of masked prompts, one miner per shape; repeated prompts use a cache."""

    def __init__(self) -> None:
        self._miners: dict[bytes, Any] = {}
        self._seen: dict[bytes, str] = {}

    def see(self, body: Body, answer: str = "") -> str:
        """See :class:`Method`. Answers don't count."""
        features = read_features(body)
        if features is None:
            return NO_STAGE
        raw = features.raw_digest(_KEY)
        if raw not in self._seen:
            fingerprint = Fingerprint.of(features, _KEY)
            miner = self._miners.get(fingerprint.shape) or self._begun(fingerprint.shape)
            number = miner.add_log_message(fingerprint.words)["cluster_id"]
            self._seen[raw] = f"{fingerprint.shape.hex()} {number}"
        return self._seen[raw]

    def label(self, body: Body) -> str:
        """See :class:`Method`."""
        features = read_features(body)
        if features is None:
            return NO_STAGE
        fingerprint = Fingerprint.of(features, _KEY)
        match = self._miners[fingerprint.shape].match(fingerprint.words)
        return f"{fingerprint.shape.hex()} {match.cluster_id}" if match else NO_STAGE

    def _begun(self, shape: bytes) -> Any:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig

        self._miners[shape] = TemplateMiner(config=TemplateMinerConfig())
        return self._miners[shape]


def has_drain() -> bool:
    """True if the peer is installed."""
    try:
        import drain3  # noqa: F401
    except ImportError:
        return False
    return True
