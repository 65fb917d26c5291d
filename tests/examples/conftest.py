"""Examples with missing packages have no tests. ``make test-examples`` runs all of them."""

from __future__ import annotations

from importlib.metadata import distributions

collect_ignore = [] if list(distributions(name="langgraph")) else ["with_langgraph"]
