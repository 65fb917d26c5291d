"""Requests that the engine received, and their tags."""

from __future__ import annotations

from typing import Any


def told(engine: Any) -> list[tuple[str, str]]:
    """Return, for each call, the stage expected and the stage received."""
    return [(request.prompt[0]["content"], request.tags.stage.name) for request in engine.requests]


def are_right(engine: Any, *names: str) -> bool:
    """Return True if every call had its expected stage, and exactly the named stages were called."""
    expected = {f"flow/{name}" for name in names}
    return {one for one, _ in told(engine)} == expected and all(one == stage for one, stage in told(engine))


def sessions(engine: Any) -> dict[str | None, int]:
    """Return the number of calls of each session."""
    counts: dict[str | None, int] = {}
    for request in engine.requests:
        counts[request.tags.session] = counts.get(request.tags.session, 0) + 1
    return counts
