"""The arguments of a vLLM server, read by the rules of vLLM's own parser. Does not import vLLM.

Importing vLLM's parser takes 10 s. ``tests/real_vllm/test_arguments.py`` compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

CONFIG_FLAG = "--config"


def expanded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with those of a ``--config`` file in front, as vLLM puts them."""
    index = _index_of_file(arguments)
    rest = arguments if index is None else [*arguments[:index], *arguments[index + 2 :]]
    return [*config_file(arguments), *rest]


def config_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments in the ``--config`` file: a YAML object of flags without their dashes.

    A file that can't be read is left to vLLM, which reports it.
    """
    index = _index_of_file(arguments)
    if index is None:
        return []
    yaml = YAML(typ="safe", pure=True)
    yaml.version, yaml.allow_duplicate_keys = "1.1", True  # as PyYAML reads it
    try:
        with open(arguments[index + 1], encoding="utf-8") as file:
            config = yaml.load(file)
    except (OSError, UnicodeDecodeError, YAMLError):
        return []
    pairs = config.items() if isinstance(config, dict) else ()
    return [argument for name, given in pairs for argument in _arguments(f"--{name}", given)]


def names(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the flags among the arguments, as vLLM reads them: ``--worker_cls=x`` is ``--worker-cls``."""
    for argument in arguments:
        if argument.startswith("-"):
            root, dot, field = argument.partition("=")[0].partition(".")
            yield root.replace("_", "-") + dot + field


def value(arguments: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag; None if it is not among the arguments."""
    found: str | None = None
    rest = iter(arguments)
    for argument in rest:
        if next(names([argument]), None) == name:
            found = argument.partition("=")[2] if "=" in argument else next(rest, "")
    return found


def is_meant(flag: str, name: str) -> bool:
    """Return whether a flag as given sets the flag ``name``: in full, abbreviated, or one field of its JSON.

    ``-sc.method``, ``--speculative-config.method`` and ``--speculative-c`` all set ``--speculative-config``.
    vLLM refuses an abbreviation of several flags.
    """
    root = flag.partition(".")[0]
    return len(root.strip("-")) > 0 and name.startswith(root)


def _index_of_file(arguments: Sequence[str]) -> int | None:
    return list(arguments).index(CONFIG_FLAG) if CONFIG_FLAG in arguments[:-1] else None


def _arguments(flag: str, given: Any) -> list[str]:
    if isinstance(given, bool):
        return [flag] if given else []
    if isinstance(given, dict):
        return [flag, json.dumps(given, default=str)]
    return [flag, *map(str, given)] if isinstance(given, list) else [flag, str(given)]
