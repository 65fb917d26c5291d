"""How far the outputs of a stage travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from agentspec.errors import ConfigError, StageError
from agentspec.stages import StageKey

Path = tuple[str, ...]  # of a stage
REACHES = NONE, HOST, FLEET = "none", "host", "fleet"
_MOST_CACHED = 4096  # stages


def parse_reaches(text: str) -> dict[str, str]:
    """Return the reach of each stage in a text such as ``a=none,b/c=host``.

    Raises:
        ConfigError: a part is not of this form.
    """
    found = {}
    for part in text.split(","):
        stage, _, reach = part.rpartition("=")
        if not stage.strip() or reach.strip() not in REACHES:
            raise ConfigError(f"STAGE=none, STAGE=host or STAGE=fleet, not {part!r}")
        found[stage.strip()] = reach.strip()
    return found


def reaches(by_stage: object, name: str = "corpus_stages") -> dict[Path, str]:
    """Return the reach of each named stage by its path.

    Args:
        by_stage: from settings: names of stages, and one of ``REACHES`` for each.
        name: of the setting, for errors.

    Raises:
        ConfigError: it is no mapping of stages to reaches.
    """
    if not isinstance(by_stage, Mapping):
        raise ConfigError(f"{name} must be stages with none, host or fleet, not {by_stage!r}")
    found = {}
    for stage, reach in by_stage.items():
        if reach not in REACHES:
            raise ConfigError(f"{name}: {stage!r} must be none, host or fleet, not {reach!r}")
        try:
            found[StageKey.parse(stage).path] = str(reach)
        except (StageError, AttributeError) as error:
            raise ConfigError(f"{name}: {stage!r} is no stage: {error}") from None
    return found


def reach_of(by_path: Mapping[Path, str]) -> Callable[[Path], str]:
    """Return what says how far a stage's outputs travel. The longest path that it is below decides.

    Args:
        by_path: of :func:`reaches`; all other stages reach the fleet.
    """

    @lru_cache(_MOST_CACHED)
    def reach(path: Path) -> str:
        sizes = range(len(path), 0, -1)
        return next((by_path[path[:size]] for size in sizes if path[:size] in by_path), FLEET)

    return reach
