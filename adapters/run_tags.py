"""The headers that ``agentspec run`` puts into a program's environment, for clients that no adapter tags.

Clients send them wherever they send anything. Where an adapter makes the request, it takes them off what a
stranger gets: the environment lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Any

RUN_TAGS_VARIABLE = "AGENTSPEC_RUN_TAGS"  # as lines: "X-Session-ID: run-1"


def run_tags_lines(tags: Mapping[str, str]) -> str:
    """The value of the variable."""
    return "\n".join(f"{name}: {value}" for name, value in tags.items())


def drop_run_tags(headers: MutableMapping[str, Any]) -> None:
    """Take off what the environment added; headers of the same name with another value stay."""
    added = _added(os.environ.get(RUN_TAGS_VARIABLE, ""))
    for name in [name for name, value in headers.items() if added.get(name.lower()) == value]:
        del headers[name]


@lru_cache(maxsize=16)
def _added(lines: str) -> dict[str, str]:
    named = (line.partition(": ") for line in lines.splitlines())
    return {name.lower(): value for name, _, value in named}
