"""The stored form of a tenant's discovered stages, and the interface of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentspec.gateway.discovery.cluster import Cluster
from agentspec.gateway.discovery.clusters import Clusters
from agentspec.gateway.discovery.templates import Template


@dataclass(slots=True)
class StoredTenant:
    """The stored clusters and refused templates of one tenant."""

    clusters: dict[str, Cluster] = field(default_factory=dict)
    refused: list[tuple[bytes, Template]] = field(default_factory=list)


class DiscoveryStore(Protocol):
    """Keeps discovered stages for several gateways. Not thread-safe.

    Call :meth:`begin`, :meth:`news`, then :meth:`commit` or :meth:`rollback`. Other writers are locked out
    in between. A failure is logged once, and unsaved changes stay marked as unsaved.

    Attributes:
        key: secret key of the digests; None if nothing is stored.
        has_lost: True if the store was empty at the last :meth:`begin`, although it had content before.
    """

    key: bytes | None
    has_lost: bool

    def begin(self) -> None:
        """Begin a transaction. Until it ends, other writers wait."""

    def news(self) -> dict[str, StoredTenant] | None:
        """Read everything, by tenant; None if no other process wrote since the last call."""

    def commit(self, tenants: Sequence[Clusters], *, with_counts: bool = True) -> None:
        """Write changes and end the transaction. If that fails, the changes stay marked as unsaved."""

    def rollback(self) -> None:
        """End the transaction without changes."""

    def close(self) -> None:
        """Close the file or the connections."""


def changed_in(clusters: Clusters, with_counts: bool) -> dict[Cluster, int]:
    """Return the clusters to write, with their present request counts, which may grow during the write."""
    return {
        cluster: cluster.num_requests
        for cluster in clusters
        if cluster in clusters.changed or (with_counts and cluster.num_requests != cluster.num_saved)
    }


def note_saved(clusters: Clusters, changed: Mapping[Cluster, int]) -> None:
    """Note that these clusters were written."""
    clusters.changed.clear()
    clusters.gone.clear()
    for cluster, num_requests in changed.items():
        cluster.num_saved = num_requests
        cluster.is_saved = True
