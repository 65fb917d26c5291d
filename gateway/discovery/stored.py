"""What is stored of a tenant's discovered stages, apart from the place where it is stored."""

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
    """A place of discovered stages that several gateways share. Not thread-safe.

    Call :meth:`begin`, :meth:`news`, then :meth:`commit` or :meth:`rollback`. Other writers are locked out
    in between. A failure is logged once; what is not saved stays marked as such.

    Attributes:
        key: secret key of the digests; None without a place.
        has_lost: True if the place was found without its content at the last :meth:`begin`.
    """

    key: bytes | None
    has_lost: bool

    def begin(self) -> None:
        """Begin a transaction, which locks out other writers."""

    def news(self) -> dict[str, StoredTenant] | None:
        """Read everything, by tenant; None if no other process wrote since the last call."""

    def commit(self, tenants: Sequence[Clusters], *, with_counts: bool = True) -> None:
        """Write changes and end the transaction. If that fails, the changes stay marked as unsaved."""

    def rollback(self) -> None:
        """End the transaction without changes."""

    def close(self) -> None:
        """Close it."""


def changed_in(clusters: Clusters, with_counts: bool) -> dict[Cluster, int]:
    """Return the clusters to be written, with their present request counts, which may grow meanwhile."""
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
