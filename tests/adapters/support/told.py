"""What the engine was asked, and how that was tagged."""

from __future__ import annotations

from typing import Any


def told(engine: Any) -> list[tuple[str, str]]:
    """Of each call the stage it should have, and the one it had."""
    return [(request.prompt[0]["content"], request.stage.name) for request in engine.requests]


def are_right(engine: Any, *names: str) -> bool:
    """All calls had the stages that they should have, and these are all that there were."""
    expected = {f"flow/{name}" for name in names}
    return {one for one, _ in told(engine)} == expected and all(one == stage for one, stage in told(engine))


def sessions(engine: Any) -> dict[str | None, int]:
    """How many calls each session had."""
    counts: dict[str | None, int] = {}
    for request in engine.requests:
        counts[request.session] = counts.get(request.session, 0) + 1
    return counts
