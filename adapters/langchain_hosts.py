"""Check that the server of a langchain-openai model gets tags."""

from __future__ import annotations

import os
from typing import Any

from agentspec.adapters.allowed_hosts import HOSTS, is_disabled


def gets_tags(model: Any, *, is_ours: bool) -> bool:
    """Return True if the server of this model gets tags.

    Args:
        is_ours: True for a ``ChatAgentSpec`` or ``AgentSpecLLM``, for which an explicit base URL is that of a
            gateway.
    """
    if is_ours and (model.openai_api_base or os.environ.get("OPENAI_BASE_URL")):
        return not is_disabled()
    if is_ours and is_disabled():
        return False
    client = getattr(model, "root_client", None) or getattr(model, "root_async_client", None)
    return HOSTS.allow((client or model.client._client).base_url.host)
