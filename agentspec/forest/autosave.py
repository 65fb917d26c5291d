"""A file that keeps the trees of an in-process engine between runs."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from agentspec.errors import ConfigError, ForestError
from agentspec.forest.file import restored
from agentspec.generation import Trees

logger = logging.getLogger("agentspec")


class ForestAutosave:
    """Context manager that loads the trees from a file, and saves them periodically and at the end.

    A missing file is not an error.

    Args:
        save_every_s: seconds between two saves. Saves run concurrently with the engine's steps.

        is_strict: raise an error if a file is damaged, too new or of another vocabulary. Otherwise such a
            file is moved aside, and nothing is loaded.

    Raises (at the start):
        ConfigError: the file can't be loaded.
    """

    def __init__(
        self, trees: Trees, path: Path, save_every_s: float = 300.0, *, is_strict: bool = False
    ) -> None:
        self._trees = trees
        self._path = path
        self._save_every_s = save_every_s
        self._is_strict = is_strict
        self._has_ended = threading.Event()
        self._saving = threading.Thread(target=self._save_at_times, name="agentspec-saver", daemon=True)

    def __enter__(self) -> ForestAutosave:
        self._load()
        self._saving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._saving.join()
        self._save()

    def _load(self) -> None:
        try:
            loaded = restored(self._path, lambda: self._trees.load(self._path), is_strict=self._is_strict)
        except (OSError, ForestError) as error:
            raise ConfigError(
                f"forest file {str(self._path)!r}: {error}; move it away, or name another file"
            ) from error
        if loaded is not None:
            logger.info("loaded the forest from %s: %s", self._path, dict(loaded))

    def _save_at_times(self) -> None:
        while not self._has_ended.wait(self._save_every_s):
            self._save()

    def _save(self) -> None:
        try:
            logger.info("saved the forest to %s: %s", self._path, dict(self._trees.save(self._path)))
        except (OSError, ForestError) as error:  # e.g. a full disk; the next save tries again
            logger.error("the forest could not be saved to %s: %s", self._path, error)
