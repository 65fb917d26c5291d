"""The settings of a corpus: its location, and which stages' outputs other engines get.

This module needs no package of the extra ``corpus``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from agentspec.errors import ConfigError, StageError
from agentspec.extras import check_installed
from agentspec.stages import StageKey

KEY_VARIABLE = "AGENTSPEC_CORPUS_KEY"  # the operator's key, which encrypts outputs

Path = tuple[str, ...]  # path of a stage
REACHES = NONE, FLEET = "none", "fleet"
_MOST_CACHED = 4096  # number of stages

_REDIS = ("redis", "rediss")  # URL schemes
# scheme, user and password, host and port, path; then options. Any other text may be part of a password
_URL = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:([^/?#]*)@)?([^/?#@:\[\]]*(?::[0-9]*)?|\[[0-9a-f:.]*\](?::[0-9]*)?)(/[^?#@]*)?"
    r"(?:[?#][^@]*)?",
    re.IGNORECASE,
)
_TYPO = re.compile(r"[a-z][a-z0-9+.-]*:.*@", re.IGNORECASE)  # a URL without its slashes


def check_corpus(location: str) -> None:
    """Check a corpus's location, key and packages, without connecting to the store.

    Raises:
        ConfigError: the location is neither a folder nor a Redis URL, the operator's key can't be used, or a
            package is missing.
    """
    check_installed("corpus")
    check_location(location)
    if os.environ.get(KEY_VARIABLE):
        from agentspec.corpus.encryption import operator_key

        operator_key()


# ---- the place ----


def check_location(location: str) -> None:
    """Raise ConfigError if the location is neither a folder nor a Redis URL."""
    is_url = "://" in location or _TYPO.match(location)
    if not location or (is_url and not is_redis(location)):
        raise ConfigError(
            f"{without_password(location)!r} is no place for a corpus: name a folder, redis://HOST:PORT/DB, "
            "or rediss://HOST:PORT/DB for TLS"
        )


def is_redis(location: str) -> bool:
    """Return True for the URL of a Redis server."""
    scheme, mark, _ = location.partition("://")
    return bool(mark) and scheme in _REDIS


def without_password(url: str) -> str:
    """Return the URL without password and options, for messages. User names are shown only for Redis URLs.

    A user name without a password is hidden, since it may be the password.
    """
    if "://" not in url:
        return f"{url.partition(':')[0]}:..." if _TYPO.match(url) else url
    found = _URL.fullmatch(url)
    if found is None:
        return f"{url.partition('://')[0]}://..."
    scheme, credentials, host, path = found.groups()
    user, colon, _ = (credentials or "").partition(":")
    shown = "" if credentials is None else f"{user if colon and is_redis(url) else '...'}@"
    return f"{scheme}://{shown}{host}{path or ''}"


# ---- the stages ----


def parse_reaches(text: str) -> dict[str, str]:
    """Return ``none`` or ``fleet`` for each stage in a text such as ``a=none,b/c=fleet``.

    Raises:
        ConfigError: a part of the text does not have this form.
    """
    found = {}
    for part in text.split(","):
        stage, _, reach = part.rpartition("=")
        if not stage.strip() or reach.strip() not in REACHES:
            raise ConfigError(f"STAGE=none or STAGE=fleet, not {part!r}")
        found[stage.strip()] = reach.strip()
    return found


def reaches(by_stage: object, name: str = "corpus_stages") -> dict[Path, str]:
    """Return ``none`` or ``fleet`` for the path of each named stage.

    Args:
        by_stage: a mapping from settings: names of stages to one of ``REACHES``.
        name: name of the setting, for errors.

    Raises:
        ConfigError: ``by_stage`` is not a mapping of stages to reaches.
    """
    if not isinstance(by_stage, Mapping):
        raise ConfigError(f"{name} must be stages with none or fleet, not {by_stage!r}")
    found = {}
    for stage, reach in by_stage.items():
        if reach not in REACHES:
            raise ConfigError(f"{name}: {stage!r} must be none or fleet, not {reach!r}")
        try:
            found[StageKey.parse(stage).path] = str(reach)
        except (StageError, AttributeError) as error:
            raise ConfigError(f"{name}: {stage!r} is no stage: {error}") from None
    return found


def sharing(by_path: Mapping[Path, str]) -> Callable[[Path], bool]:
    """Return a function that returns True if other engines get the outputs of a stage, given its path.

    Args:
        by_path: result of :func:`reaches`. The longest path that contains the stage decides; others are
            shared.
    """

    @lru_cache(_MOST_CACHED)
    def is_shared(path: Path) -> bool:
        sizes = range(len(path), 0, -1)
        return next((by_path[path[:size]] for size in sizes if path[:size] in by_path), FLEET) == FLEET

    return is_shared
