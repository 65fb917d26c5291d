"""Commands for the trees of an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.errors import ForestFileError, RequestError
from agentspec.forest_folder import ForestFolder
from agentspec.gateway.errors import NoControlError
from agentspec.generation import Engine, PastOutput, Trees
from agentspec.stages import StageKey


class TreeControl:
    """Commands for an engine's trees, which run in threads, concurrently with its decode steps.

    ``files`` is the folder in which trees may be saved. All commands raise NoControlError if the engine has
    no trees. They implement those of :class:`~agentspec.gateway.upstreams.upstream.Upstream`.
    """

    def __init__(self, engine: Engine, files: ForestFolder) -> None:
        self._engine = engine
        self._files = files

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's own tree."""
        return {"freed_bytes": await asyncio.to_thread(self._trees.evict, stage)}

    async def warm(self, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Insert past outputs into the trees."""
        num_tokens = await asyncio.to_thread(self._trees.learn, outputs)
        return {"num_outputs": len(outputs), "num_tokens": num_tokens}

    async def save(self, path: str | None) -> dict[str, Any]:
        """Write all trees to a file. Raises RequestError if the file can't be written."""
        return await self._with_file(path, self._trees.save)

    async def load(self, path: str | None) -> dict[str, Any]:
        """Add the trees in a file. Raises RequestError if the file can't be read."""
        return await self._with_file(path, self._trees.load)

    @property
    def _trees(self) -> Trees:
        trees = self._engine.trees
        if trees is None:
            raise NoControlError("nothing is learned here: the engine was started with no drafts")
        return trees

    async def _with_file(self, path: str | None, work: Callable[[Path], Mapping[str, int]]) -> dict[str, Any]:
        try:
            file = self._files.find(path)
            return {"path": str(file), **await asyncio.to_thread(work, file)}
        except ForestFileError as error:
            raise RequestError(str(error), param="path") from error
