"""A file that keeps the trees of a process between runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from agentspec.errors import ConfigError, ForestError
from agentspec.forest.file import restored

LEAST_S, MOST_S = 10.0, 300.0  # between two saves, unless a number is given
SHARE = 500  # a save may take a 500th of the time between two

logger = logging.getLogger("agentspec")


class SavedTrees(Protocol):
    """Trees that can be saved and loaded, both concurrently with decode steps. Both return sizes, by name."""

    def save(self, path: Path) -> Mapping[str, Any]:
        """Write all trees to a file. Raises ForestFileError."""

    def load(self, path: Path) -> Mapping[str, Any]:
        """Add the content of a saved file. Raises ForestFileError; then nothing was changed."""


class ForestAutosave:
    """Loads the trees from a file at the start, and saves them periodically and at the end.

    A missing file is not an error. A save that fails is logged; the next one tries again. A process that is
    killed loses outputs learned since the last save, so small trees are saved more often by default.

    Args:
        save_every_s: seconds between two saves. None = ``SHARE`` times what the last one took, ``LEAST_S`` to
            ``MOST_S``. Saves run concurrently with the engine's steps.
        is_strict: raise an error if a file is damaged, or of another format or vocabulary. Otherwise such a
            file is moved aside, and nothing is loaded.
        version: returns a value that changes with the trees; unchanged trees are not saved again. By default
            each value is new, and every save is made.
    """

    def __init__(
        self,
        trees: SavedTrees,
        path: Path,
        save_every_s: float | None = None,
        *,
        is_strict: bool = False,
        version: Callable[[], object] = object,
    ) -> None:
        self._trees = trees
        self._path = path
        self._save_every_s = save_every_s
        self._is_strict = is_strict
        self._version = version
        self._saved_version: object = None
        self._has_saved = False
        self._last_save_s = 0.0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._save_at_times, name="agentspec-saver", daemon=True)

    def __enter__(self) -> ForestAutosave:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Load the file and start saving.

        Raises:
            ConfigError: the file can't be loaded.
        """
        try:
            loaded = restored(self._path, lambda: self._trees.load(self._path), is_strict=self._is_strict)
        except (OSError, ForestError) as error:
            raise ConfigError(
                f"forest file {str(self._path)!r}: {error}; move it away, or name another file"
            ) from error
        if loaded is not None:
            logger.info("loaded the forest from %s: %s", self._path, dict(loaded))
        self._saved_version = self._version()
        self._thread.start()

    def stop(self) -> None:
        """End the regular saves, and save a last time."""
        self._has_ended.set()
        self._thread.join()
        self._save()

    def _save_at_times(self) -> None:
        while not self._has_ended.wait(self._save_every_s or seconds_between(self._last_save_s)):
            self._save()

    def _save(self) -> None:
        version = self._version()
        is_there = self._path.exists() or not self._has_saved
        if version == self._saved_version and is_there:
            return
        began_s = time.monotonic()
        try:
            logger.info("saved the forest to %s: %s", self._path, dict(self._trees.save(self._path)))
            self._saved_version, self._has_saved = version, True
        except (OSError, ForestError) as error:  # e.g. a full disk
            logger.error("the forest could not be saved to %s: %s", self._path, error)
        except Exception:  # serving continues
            logger.exception("the forest could not be saved to %s", self._path)
        self._last_save_s = time.monotonic() - began_s


def seconds_between(save_s: float) -> float:
    """Return the time between two saves if one takes ``save_s``."""
    return min(MOST_S, max(LEAST_S, SHARE * save_s))
