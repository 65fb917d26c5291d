"""The text of ``agentspec.yaml`` with every setting, made from the model of the settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from agentspec.gateway.settings import Settings
from agentspec.serve_settings import EngineSettings, presentation

HEADER = """\
# Every setting of `agentspec serve --config FILE`, with its default.
#
# A line that begins with "#" and a name is a setting without a default, or an example. Remove the "#" to use
# it. A value ${NAME} is that variable of the environment. Every setting also has an environment variable,
# which overrides the file: AGENTSPEC_ROUTING__SPILL=2 (lists and groups as JSON). Flags of the command
# override both. `agentspec serve --config FILE --dry-run` runs every check of a start and shows all values.
# The documents are at https://github.com/agentspec/agentspec/tree/main/docs.
#
# The file is read again when it changes, and on SIGHUP. Changes take effect immediately in keys,
# admin_key_sha256, limits, upstreams, routing, timeouts, retries, health, server.log_level and
# server.cors_origins. Other changes need a restart; the log names them. A file with an error changes nothing.
# A file that removes the last key, or the operator's key, changes nothing either, unless it sets
# server.allow_open.
"""
MAX_COLUMNS = 118
MAX_VALUE_COLUMNS = 40  # of a line with a comment behind it
Entry = Mapping[str, Any]


def settings_file(given: Mapping[str, Any] | None = None) -> str:
    """Return the file with all settings, those in ``given`` set: groups and lists of groups, by name."""
    given = given or {}
    blocks = [HEADER]
    for name, info in Settings.model_fields.items():
        blocks.append("".join(f"{line}\n" for line in _block(name, info, given.get(name))))
    return "\n".join(blocks)


def group_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type like ``Group``, ``Group | None`` or ``tuple[Group, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for one in get_args(annotation) if (model := group_of(one))), None)


def _block(name: str, info: FieldInfo, given: Any) -> Iterator[str]:
    """Yield the lines of one setting of the top level: a group, a list of groups, or a single value."""
    model = group_of(info.annotation)
    if model is None:
        yield from _lines({name: info}, {} if given is None else {name: given}, "", is_optional=True)
        return
    yield from _comment(" ".join((model.__doc__ or "").split()).replace("``", "`"), "")
    is_list = info.default == ()
    is_optional = is_list or model is EngineSettings
    yield f"{'#' if is_optional and not given else ''}{name}:"
    if not is_list:
        yield from _lines(model.model_fields, given or {}, "  ", is_optional=is_optional)
        return
    first, *others = given or [{}]
    yield from _as_entry(_lines(model.model_fields, first, "    ", is_optional=True))
    for entry in others:
        fields = {each: model.model_fields[each] for each in entry}
        yield from _as_entry(_lines(fields, entry, "    ", is_optional=True))


def _as_entry(lines: Iterator[str]) -> Iterator[str]:
    """Begin the first setting of a list's entry with a dash."""
    is_first = True
    for line in lines:
        if is_first and not line.removeprefix("#").lstrip().startswith("# "):
            line, is_first = line.replace("    ", "  - ", 1), False
        yield line


def _lines(fields: Mapping[str, FieldInfo], given: Entry, indent: str, *, is_optional: bool) -> Iterator[str]:
    """Yield one line for each setting, with its description behind or above it.

    Args:
        is_optional: a setting that is not in ``given`` becomes a comment. Otherwise it has its default.
    """
    heads, marks = {}, {}
    for name, info in fields.items():
        example = presentation(info)["example"]
        value = given.get(name, info.default if example is None or not is_optional else example)
        marks[name] = "#" if is_optional and name not in given else ""
        heads[name] = f"{marks[name]}{indent}{name}: {_scalar(value)}"
    width = max((len(head) for head in heads.values() if len(head) <= MAX_VALUE_COLUMNS), default=0)
    for name, head in heads.items():
        text = fields[name].description or ""
        if len(head) <= MAX_VALUE_COLUMNS and width + len(text) + 4 <= MAX_COLUMNS:
            yield f"{head.ljust(width)}  # {text}"
        else:
            yield from _comment(text, marks[name] + indent if indent else "")
            yield head


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        MAX_COLUMNS,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
    )


def _scalar(value: Any) -> str:
    return yaml_text(plain(value), is_flow=True).removesuffix("...\n").rstrip("\n")


def plain(value: Any) -> Any:
    """Return a value of a setting as JSON has it: texts, numbers, lists."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    return str(value) if isinstance(value, Path | str) else value


def yaml_text(value: Any, *, is_flow: bool) -> str:
    """Return a value as YAML: on one line if ``is_flow``, else in blocks. Groups keep their order."""
    written = StringIO()
    dumper: Any = YAML(typ="safe", pure=True)  # its types lack some settings
    dumper.sort_base_mapping_type_on_output = False
    dumper.default_flow_style, dumper.width = is_flow, 1 << 20
    dumper.dump(value, written)
    return written.getvalue()
