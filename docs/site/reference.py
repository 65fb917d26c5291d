"""Reference pages made from the code: the command line, the gateway's settings and its HTTP endpoints.

``python -m docs.site.reference`` writes the tables of fields into ``docs/endpoints.md``.
"""

from __future__ import annotations

import argparse
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from agentspec.cli import CommandParser, build_parser
from agentspec.gateway.openai.fields import TABLES, Use
from agentspec.gateway.settings import Settings

ENDPOINTS = Path(__file__).parents[1] / "endpoints.md"
MARKS = ("<!-- made by docs/site/reference.py -->", "<!-- end -->")
TITLES = {
    Use.HONOURED: ("Honoured", "effect"),
    Use.HARMLESS: ("Harmless", "reason why it changes nothing"),
    Use.REFUSED: ("Refused, unless the value asks for nothing", "way out"),
}
OPENAPI = Path(__file__).parents[1] / "openapi.yaml"
METHODS = ("get", "post", "put", "patch", "delete")


def command_line() -> str:
    """Return the help of ``agentspec`` and of every subcommand, as their parsers print it."""
    os.environ["COLUMNS"] = "100"  # argparse wraps at the terminal's width
    parts = [
        "# Command line",
        "",
        "Each section shows the output of `agentspec COMMAND --help`.",
        "",
    ]
    for parser in _parsers(build_parser()):
        parts += [f"## `{parser.prog}`", "", "```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(parts)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:  # argparse has no public way to list subcommands
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                if isinstance(child, CommandParser):
                    child.add_options()
                yield from _parsers(child)


def settings() -> str:
    """Return one table for each group of the gateway's configuration file."""
    parts = [
        "# Settings",
        "",
        "The groups of the gateway's YAML file. A commented file with every default:",
        "[deploy/agentspec.yaml](https://github.com/agentspec/agentspec/blob/main/deploy/agentspec.yaml).",
        "",
    ]
    for name, model in _groups(Settings, ""):
        parts += [f"## `{name}`" if name else "## The file", ""]
        parts += ["| setting | type | default | description |", "|---|---|---|---|"]
        described = _attributes(model)
        for field_name, field in model.model_fields.items():
            default = "required" if field.is_required() else f"`{_shown(field.default)}`"
            kind = html.escape(_type_name(field.annotation)).replace("|", "&#124;")
            text = described.get(field_name, "")
            parts.append(f"| `{field_name}` | <code>{kind}</code> | {default} | {text} |")
        parts.append("")
    return "\n".join(parts)


def _groups(model: type[BaseModel], name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield name, model
    for field_name, field in model.model_fields.items():
        for inner in _models(field.annotation):
            is_list = "tuple" in str(field.annotation) or "list" in str(field.annotation)
            inner_name = ".".join(filter(None, (name, field_name))) + ("[]" if is_list else "")
            yield from _groups(inner, inner_name)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in getattr(annotation, "__args__", ()):
            yield from _models(argument)


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions in the ``Attributes:`` section of a docstring, by name."""
    section = (model.__doc__ or "").partition("Attributes:")[2]
    entries = re.findall(r"^ {8}([\w, ]+): (.*(?:\n {12}.*)*)", section, re.MULTILINE)
    return {
        name.strip(): re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|")
        for names, text in entries
        for name in names.split(",")
    }


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", ()):
        return annotation.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(annotation))


def _shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "made for each file"
    if isinstance(default, BaseModel):
        return "see below"
    if isinstance(default, frozenset):
        return str(sorted(default))
    return str(getattr(default, "value", default)) or '""'


def endpoints() -> str:
    """Return one table of the endpoints in ``docs/openapi.yaml``, by tag."""
    document = yaml.safe_load(OPENAPI.read_text(encoding="utf-8"))
    rows: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                operation = item[method]
                summary = " ".join(str(operation.get("summary", "")).split())
                tag = (operation.get("tags") or ["endpoints"])[0]
                rows.setdefault(tag, []).append(f"| `{method.upper()}` | `{path}` | {summary} |")
    parts = [
        "# HTTP endpoints",
        "",
        "The full description is [openapi.yaml](../openapi.yaml). A test fails if the gateway violates it.",
        "",
    ]
    for tag, lines in rows.items():
        parts += [f"## {tag}", "", "| method | path | summary |", "|---|---|---|", *lines, ""]
    return "\n".join(parts)


def fields() -> str:
    """Return the tables of request fields: honoured, harmless, refused."""
    parts = []
    for use, (title, column) in TITLES.items():
        parts += [f"### {title}", "", f"| field | endpoint | {column} |", "|---|---|---|"]
        parts += [f"| {names} | {paths} | {note} |" for names, paths, note in _field_rows(use)] + [""]
    return "\n".join(parts)


def _field_rows(use: Use) -> Iterator[tuple[str, str, str]]:
    """Yield one row for all fields with the same note at the same endpoints."""
    paths_of: dict[tuple[str, str], list[str]] = {}
    for path, table in TABLES.items():
        for name, rule in table.items():
            if rule.use is use:
                paths_of.setdefault((name, rule.note), []).append(path)
    names_of: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, note), paths in paths_of.items():
        names_of.setdefault((note, tuple(paths)), []).append(name)
    for (note, served), names in names_of.items():
        shown = ", ".join(path.removeprefix("/v1/").removeprefix("/").split("/")[0] for path in served)
        yield ", ".join(f"`{name}`" for name in names), shown, note


def with_fields(page: str) -> str:
    """Return ``docs/endpoints.md`` with the tables between its marks replaced."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{fields()}\n{MARKS[1]}{after}"


PAGES = {
    "reference/cli.md": command_line,
    "reference/settings.md": settings,
    "reference/http.md": endpoints,
}

if __name__ == "__main__":
    ENDPOINTS.write_text(with_fields(ENDPOINTS.read_text(encoding="utf-8")), encoding="utf-8")
