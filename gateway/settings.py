"""Settings of the gateway itself; those of its upstreams are theirs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20


class GatewaySettings(BaseModel):
    """Limits of one gateway.

    Attributes:
        body_limit_bytes: largest request body that is read; a larger one gets a 413.
        num_stage_labels: so many stages per tenant get their own label in ``/metrics``, those seen
            first; the rest are counted together as ``other``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_limit_bytes: int = Field(default=32 * MIB, ge=1024)
    num_stage_labels: int = Field(default=100, ge=1)
