"""The headers that ``agentspec run`` puts into a program's environment, for clients without an adapter.

Such clients send them to every server. An adapter removes them from its requests to servers that get no
tags. An environment variable lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Any

RUN_TAGS_VARIABLE = "AGENTSPEC_RUN_TAGS"  # as lines: "X-Session-ID: run-1"


def run_tags_lines(tags: Mapping[str, str]) -> str:
    """Return the value of the variable."""
    return "\n".join(f"{name}: {value}" for name, value in tags.items())


def drop_run_tags(headers: MutableMapping[str, Any]) -> None:
    """Remove headers added by the environment; headers of the same name with another value stay."""
    added = _added(os.environ.get(RUN_TAGS_VARIABLE, ""))
    for name in [name for name, value in headers.items() if added.get(name.lower()) == value]:
        del headers[name]


@lru_cache(maxsize=16)
def _added(lines: str) -> dict[str, str]:
    named = (line.partition(": ") for line in lines.splitlines())
    return {name.lower(): value for name, _, value in named}
