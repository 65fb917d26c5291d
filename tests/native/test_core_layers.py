"""The permitted includes between the folders of the native code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "agentspec" / "native"
LAYERS = {  # a folder may include its own headers and those of these
    "core": set(),
    "core/index": {"core"},
    "core/threads": {"core"},
    "core/drafting": {"core", "core/index"},
    "core/forest": {"core", "core/index", "core/threads", "core/drafting"},
    # the rows of an engine's batch and the time of its steps: the core knows neither
    "steps": {"core", "core/forest"},
}
# The parts of the forest, from the bottom up: a part may include its own headers and those of these.
FOREST = {
    "own_index": set(),
    "request": {"own_index"},
    "memory_budget": {"request"},
    "batch": {"request"},
    "own_index_builder": {"memory_budget", "request"},
    "tree_registry": {"batch", "memory_budget", "request"},
    "batch_step": {"batch", "memory_budget"},
    "forest_core": {"batch", "batch_step", "memory_budget", "own_index_builder", "tree_registry"},
}
MOST_FILES = 20  # of a folder
SOURCES = sorted(path for folder in LAYERS for path in (NATIVE / folder).glob("*.?pp"))


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def test_every_folder_has_a_layer_and_few_files() -> None:
    folders = {path.parent.relative_to(NATIVE).as_posix() for path in NATIVE.rglob("*.?pp")}
    assert folders == LAYERS.keys() | {"bindings"}
    for folder in folders:
        assert len(list((NATIVE / folder).glob("*.?pp"))) <= MOST_FILES, folder


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_includes_point_downwards(path: Path) -> None:
    folder = folder_of(str(path.relative_to(NATIVE)))
    included = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    assert {folder_of(name) for name in included} <= LAYERS[folder] | {folder}


def test_the_parts_of_the_forest_do_not_know_their_users() -> None:
    sources = [path for path in SOURCES if path.parent.name == "forest"]
    assert {path.stem for path in sources} == FOREST.keys()
    for path in sources:
        included = set(re.findall(r'^#include "core/forest/(.+)\.hpp"', path.read_text(), re.MULTILINE))
        assert included <= FOREST[path.stem] | {path.stem}, path.name


def test_the_core_does_not_include_python() -> None:
    assert not [path.name for path in SOURCES if re.search(r"Python\.h|pybind11", path.read_text())]
