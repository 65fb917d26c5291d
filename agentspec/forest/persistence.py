"""Saving the finished outputs and models of a forest to a file, and learning them again.

The most recently used are saved first, so that they find room when a smaller forest loads them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from agentspec._native import ForestCore
from agentspec.errors import ConfigError, UnknownRequestError, UnusableForestError
from agentspec.forest.file import ForestReader, ForestWriter, SavedForest, SavedModel, SavedOutputs, Totals
from agentspec.forest.registry import TreeRegistry


def save(file: ForestWriter, core: ForestCore, trees: TreeRegistry) -> SavedForest:
    """Write all models and finished outputs. Other threads may use the forest meanwhile."""
    for model in models(core, trees):
        file.add_model(model)
    for outputs in _outputs(core, trees):
        file.add_outputs(outputs)
    return file.finish()


def load(file: ForestReader, core: ForestCore, trees: TreeRegistry) -> SavedForest:
    """Learn a file's outputs again, after all of it has been verified.

    Raises:
        UnusableForestError: the file is damaged. The forest is unchanged.
    """
    for item in file:
        if isinstance(item, SavedModel):
            _check_model(item, file)
    totals = Totals()
    for item in file:
        if isinstance(item, SavedModel):
            trees.add_model(item.name, item.state)
        elif _learn(item, core, trees):
            totals.add(item)
    return totals.saved(file.num_bytes)


def models(core: ForestCore, trees: TreeRegistry) -> Iterator[SavedModel]:
    """Yield the models, the most recently used first. Other threads may use the forest meanwhile."""
    for name, model in trees.models():
        with contextlib.suppress(UnknownRequestError):  # another thread may drop it meanwhile
            yield SavedModel(name, core.model_state(model))


def _outputs(core: ForestCore, trees: TreeRegistry) -> Iterator[SavedOutputs]:
    """Yield each tree's finished outputs in parts, so that other calls run in between."""
    for name, index in trees.trees():
        with contextlib.suppress(UnknownRequestError):  # another thread may drop it meanwhile
            outputs = SavedOutputs(name, *core.read_outputs(index, True))
            while len(outputs.sizes):
                yield outputs
                outputs = SavedOutputs(name, *core.read_outputs(index, False))


def _learn(saved: SavedOutputs, core: ForestCore, trees: TreeRegistry) -> bool:
    """Return False if the forest has no room for the tree."""
    index = trees.add_tree(saved.name)
    if index is None:
        return False
    indices = np.array([index], np.uint64)
    for tokens, uses in saved:
        core.learn(indices, tokens, uses)
    return True


def _check_model(saved: SavedModel, file: ForestReader) -> None:
    try:
        ForestCore.check_model_state(saved.state)
    except ConfigError as error:
        raise UnusableForestError(
            f"{os.fspath(file.path)!r} holds no model for {saved.name!r}: {error}"
        ) from error
