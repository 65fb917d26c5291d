"""Costs of sharing, as the benchmark fleet measured them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Costs:
    """What one output, one entry of the log or one token takes.

    Attributes:
        tokens_per_output: of recorded outputs, the mean.
        share_us: of an answer's path, the median.
        learn_us: CPU of a learned token in an engine that takes steps; its tokens are random.
        tenant_tree_bytes: of a token in the tree of its tenant.
        trees_bytes: of a token in all trees of its tenant together.
        looks_us: CPU of the store for a look at its tenants, by their number.
        by_batch: the part's other figures, by the number of outputs that a replica gathers.
    """

    tokens_per_output: float
    share_us: float
    learn_us: float
    tenant_tree_bytes: float
    trees_bytes: float
    looks_us: Mapping[int, float]
    by_batch: Mapping[int, Mapping[str, float]]

    @classmethod
    def read(cls, path: Path) -> Costs:
        """Return the costs in a file of results.

        Raises:
            ConfigError: the file lacks them.
        """
        try:
            parts: dict[str, Any] = json.loads(path.read_text())["parts"]
            costs, engine = parts["costs"], parts["publish"]["by_driver"]["redis"]["steady"]
            return cls(
                costs["tokens_per_output"],
                engine["publish_us_p50"],
                engine["learner"]["cpu_s"] / engine["learner"]["num_tokens"] * 1e6,
                costs["tenant_tree_bytes_per_token"],
                costs["trees_bytes_per_token"],
                _by_number(costs["look_server_us"]),
                _by_number(costs["by_batch"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{str(path)!r} has no costs ({error!r}): "
                "write it by `python -m benchmarks fleet --only costs,publish --traces DIR --json FILE`"
            ) from None

    def of_batch(self, name: str, num_outputs: float) -> float:
        """Return a figure for batches of a size between those that were measured."""
        sizes = sorted(self.by_batch)
        values = [self.by_batch[size][name] for size in sizes]
        return float(np.interp(math.log(num_outputs), np.log(sizes), values))

    def look_us(self, num_tenants: int) -> float:
        """Return the store's CPU for a look at its tenants."""
        numbers = sorted(self.looks_us)
        (few, some), (many, more) = ((number, self.looks_us[number]) for number in (numbers[0], numbers[-1]))
        return some + (more - some) / (many - few) * (num_tenants - few)


def _by_number(found: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): one for number, one in found.items()}
