"""How far the outputs of a stage travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from agentspec.errors import ConfigError, StageError
from agentspec.stages import StageKey

Path = tuple[str, ...]  # of a stage
REACHES = NONE, HOST, FLEET = "none", "host", "fleet"
_MOST_CACHED = 4096  # stages


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


def sharing_of(by_path: Mapping[Path, str], *, is_on_host: bool) -> Callable[[Path], bool]:
    """Return what says if a corpus gets a stage's outputs. The longest path that it is below decides.

    Args:
        by_path: of :func:`reaches`; all other stages reach the fleet.
        is_on_host: the corpus is a folder, which no other host reads.
    """

    @lru_cache(_MOST_CACHED)
    def is_shared(path: Path) -> bool:
        sizes = range(len(path), 0, -1)
        reach = next((by_path[path[:size]] for size in sizes if path[:size] in by_path), FLEET)
        return reach == FLEET or (reach == HOST and is_on_host)

    return is_shared
