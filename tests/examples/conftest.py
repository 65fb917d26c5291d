"""Examples that need more than ours have no tests where it is missing: ``make test-examples`` runs them."""

from __future__ import annotations

from importlib.metadata import distributions

collect_ignore = [] if list(distributions(name="langgraph")) else ["with_langgraph"]
