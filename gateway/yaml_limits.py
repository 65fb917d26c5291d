"""Limits of a YAML file, which apply while it is parsed: size, nesting, and what its aliases add up to.

An alias stands for everything under its anchor. A short file can thus hold more values than fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from agentspec.errors import ConfigError

MAX_BYTES = 2 << 20
MAX_DEPTH = 32  # the scanner's time grows with the square of it
MAX_NODES = 100_000  # with every alias counted at its full size


class LimitError(MarkedYAMLError):
    """A YAML file exceeds a limit."""


def read_bounded(path: Path) -> bytes:
    """Return the file's content. Raises ConfigError if it can't be read, or is too large."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{str(path)!r} has more than {MAX_BYTES} bytes")
    return raw


def load_bounded(text: str) -> Any:
    """Return the document with line numbers. Raises YAMLError; LimitError if it exceeds a limit."""
    yaml = YAML()  # YAML 1.2: a tenant may be called "no"
    yaml.Composer = _BoundedComposer
    return yaml.load(text)


class _BoundedComposer(Composer):
    """Composes nodes within the limits, before any value is made of them."""

    _depth = 0
    _num_nodes = 0

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise LimitError(problem=f"it has more than {MAX_NODES} values", problem_mark=event.start_mark)
        if self._depth == MAX_DEPTH:
            raise LimitError(
                problem=f"it is nested more than {MAX_DEPTH} deep", problem_mark=event.start_mark
            )
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a node with its aliases expanded: number of values, and levels."""

    num_values: int = 1
    num_levels: int = 1


def _check_size(root: Node) -> None:
    """Raise LimitError if aliases expand to too much, or contain themselves. Each node is visited once."""
    known: dict[int, _Extent | None] = {}  # None = not complete

    def extent(node: Node) -> _Extent:
        if id(node) in known:
            found = known[id(node)]
            if found is None:
                problem = "an alias stands for a part of itself"
                raise LimitError(problem=problem, problem_mark=node.start_mark)
            return found
        known[id(node)] = None
        parts = [extent(one) for one in _children(node)]
        num_values = 1 + sum(part.num_values for part in parts)
        num_levels = 1 + max((part.num_levels for part in parts), default=0)
        if num_values > MAX_NODES or num_levels > MAX_DEPTH + 1:
            problem = f"its aliases stand for more than {MAX_NODES} values, or {MAX_DEPTH} levels"
            raise LimitError(problem=problem, problem_mark=node.start_mark)
        known[id(node)] = found = _Extent(num_values, num_levels)
        return found

    extent(root)


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [one for pair in node.value for one in pair]
    return node.value if isinstance(node, SequenceNode) else []
