"""The ``agentspec.yaml`` file with all settings. The environment overrides it; errors name the place.

Every setting is also ``$AGENTSPEC_<GROUP>__<NAME>`` (``AGENTSPEC_ROUTING__SPILL=2``), with lists and groups
as JSON. A value ``${NAME}`` in the file is that environment variable, which keeps secrets out of the file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from agentspec.errors import ConfigError
from agentspec.gateway.environment import unknown_variables
from agentspec.gateway.settings import ENVIRONMENT_PREFIX, Settings

SECRETS = frozenset(("api_key", "control_token", "sha256", "admin_key_sha256"))
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

logger = logging.getLogger("agentspec.gateway")

Location = tuple[str | int, ...]


def load_settings(path: Path | None) -> Settings:
    """Return the settings from the file at ``path`` and the environment, or from the environment only.

    Raises:
        ConfigError: the file can't be read, or values are wrong; each is named with its place.
    """
    tree = None if path is None else _composed(path)
    unknown = unknown_variables(os.environ, _used(tree))
    if unknown:
        logger.warning("no setting, and ignored: %s", ", ".join(f"${name}" for name in unknown))
    values = {} if tree is None else _values(tree, path)
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error.errors(include_url=False), tree, path))) from None
    except SettingsError as error:  # a variable that should be JSON
        raise ConfigError(f"the environment: {error}") from None


def _composed(path: Path) -> yaml.Node | None:
    """Return the file as a node tree with line numbers; None if it is empty."""
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is no UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: this is no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: this is no YAML: {error}") from None


def _used(tree: yaml.Node | None) -> set[str]:
    """Return the variables that the file names."""
    nodes = () if tree is None else _nodes(tree, set())
    found = (_VARIABLE.fullmatch(node.value) for node in nodes if isinstance(node, yaml.ScalarNode))
    return {one[1] for one in found if one}


def _values(tree: yaml.Node, path: Path | None) -> dict[str, Any]:
    """Return the file's values, with environment variables substituted."""
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path}:{_line(tree)}: the file must be a mapping, like 'server: ...'")
    for node in _nodes(tree, set()):
        if isinstance(node, yaml.MappingNode):
            _refuse_twice(node, path)
        elif isinstance(node, yaml.ScalarNode) and (named := _VARIABLE.fullmatch(node.value)):
            value = os.environ.get(named[1])
            if value is None:
                raise ConfigError(f"{path}:{_line(node)}: there is no ${named[1]} in the environment")
            node.value, node.tag = value, "tag:yaml.org,2002:str"
    constructor = yaml.SafeLoader("")
    try:
        values: dict[str, Any] = constructor.construct_document(tree)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: {error.problem}") from None
    return {str(name): value for name, value in values.items()}


def _nodes(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    yield node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _nodes(key, seen)
            yield from _nodes(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _nodes(item, seen)


def _refuse_twice(node: yaml.MappingNode, path: Path | None) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        if key.value in names:
            raise ConfigError(f"{path}:{_line(key)}: {key.value!r} is there twice")
        names.add(key.value)


def _lines(errors: Sequence[ErrorDetails], tree: yaml.Node | None, path: Path | None) -> Iterator[str]:
    for error in errors:
        if error["type"] == "extra_forbidden":
            yield f"{_place(error['loc'], tree, path, is_name=True)} is no setting; {_meant(error['loc'])}"
            continue
        message = error["msg"].removeprefix("Value error, ")
        yield f"{_place(error['loc'], tree, path)}: {message}{_given(error)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a message with the closest match for ``name`` in ``known``, or with all of ``known``."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


def _meant(location: Location) -> str:
    """Suggest a setting for the unknown ``location``: the closest match, or all names of its group."""
    name, group = str(location[-1]), _group(location[:-1])
    known = list(group.model_fields)
    if name not in known and not get_close_matches(name, known, 1):
        for other, field in Settings.model_fields.items():
            of_field = _model_of(field.annotation)
            if of_field is not None and name in of_field.model_fields:
                return f"did you mean {other}.{name}?"
    return suggestion(name, known)


def _group(location: Location) -> type[BaseModel]:
    """Return the model that has the settings at ``location``."""
    group: type[BaseModel] = Settings
    for part in location:
        field = group.model_fields.get(str(part))  # a number is an index into a list of such models
        group = (field and _model_of(field.annotation)) or group
    return group


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type like ``Group``, ``Group | None`` or ``tuple[Group, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for one in get_args(annotation) if (model := _model_of(one))), None)


def _place(location: Location, tree: yaml.Node | None, path: Path | None, *, is_name: bool = False) -> str:
    """Return the place of a value (or of its name, if ``is_name``), and the setting's name."""
    field = _field(location)
    variable = ENVIRONMENT_PREFIX + "__".join(map(str, location)).upper()
    node = None if tree is None else _found(tree, location, is_name=is_name)
    if variable in os.environ or (location and node is None):
        return f"${variable}: {field}"
    place = str(path or "the settings") if node is None else f"{path}:{_line(node)}"
    return f"{place}: {field}" if field else place


def _given(error: ErrorDetails) -> str:
    """Return the wrong value for the message, unless it is a secret or may hold one."""
    if error["type"] == "missing" or not SECRETS.isdisjoint(map(str, error["loc"])):
        return ""
    value = error["input"]
    if isinstance(value, str) and "@" in value:  # a URL with a password in it
        return ""
    return f", not {value!r}" if isinstance(value, str | int | float | bool) else ""


def _field(location: Location) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _found(node: yaml.Node, location: Location, *, is_name: bool = False) -> yaml.Node | None:
    """Return the node at ``location``, or its deepest ancestor in the file; None if there is none.

    With ``is_name``, return the node of the name instead of the value, which may begin lines further down.
    """
    found: yaml.Node | None = None
    for index, part in enumerate(location, 1):
        following = _child(found or node, part, is_name=is_name and index == len(location))
        if following is None:
            break
        found = following
    return found


def _child(node: yaml.Node, part: str | int, *, is_name: bool) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((key if is_name else value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        child: yaml.Node = node.value[part]
        return child
    return None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
