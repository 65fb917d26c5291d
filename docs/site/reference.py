"""Reference pages made from the code: the command line, the settings and the HTTP endpoints.

``python -m docs.site.reference`` writes ``docs/reference/settings.md``, ``deploy/agentspec.yaml`` and the
tables of fields in ``docs/endpoints.md``.
"""

from __future__ import annotations

import argparse
import html
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from agentspec.cli import CommandParser, build_parser
from agentspec.commands.serve.options import HelpAll
from agentspec.commands.settings_file import group_of, plain, settings_file
from agentspec.gateway.environment import OTHER_VARIABLES
from agentspec.gateway.openai.fields import TABLES, Use
from agentspec.gateway.settings import Settings
from agentspec.serve_settings import DraftingSettings
from agentspec.vllm_plugin.settings import PluginSettings

ENDPOINTS = Path(__file__).parents[1] / "endpoints.md"
MARKS = ("<!-- made by docs/site/reference.py -->", "<!-- end -->")
TITLES = {
    Use.HONOURED: ("Honoured", "effect"),
    Use.HARMLESS: ("Harmless", "reason why it changes nothing"),
    Use.REFUSED: ("Refused, unless the value asks for nothing", "way out"),
}
OPENAPI = Path(__file__).parents[1] / "openapi.yaml"
SETTINGS = Path(__file__).parents[1] / "reference" / "settings.md"
SETTINGS_FILE = Path(__file__).parents[2] / "deploy" / "agentspec.yaml"
SETTINGS_INTRODUCTION = """\
# Settings

For operators of a gateway or an engine: every setting, its flag and its variable.
`python -m docs.site.reference` makes this page from the code.

A setting is in the YAML file of `agentspec serve --config FILE`, in a group: `routing: {spill: 2}`. Its
variable is made of both names: `AGENTSPEC_ROUTING__SPILL=2`, with lists and groups as JSON. Those of `server`
and `engine` that are no lists have a flag of `agentspec serve`, too. A flag overrides the variable, which
overrides the file. [deploy/agentspec.yaml](../../deploy/agentspec.yaml) is a file with every setting;
`agentspec init` writes one.
"""
PLUGIN_INTRODUCTION = """
Keys of the JSON object in `$AGENTSPEC_VLLM_SETTINGS`, or of `agentspec` in vLLM's `--additional-config`,
beside the settings of the group `engine` for drafts, trees and corpus, which `agentspec serve` passes on.
"""
SIGNS = {"ge": "≥", "gt": ">", "le": "≤"}
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
                for one in child._actions:
                    if isinstance(one, HelpAll):
                        one.show_all()
                yield from _parsers(child)


def settings() -> str:
    """Return the page of all settings, flags and variables."""
    parts = [SETTINGS_INTRODUCTION]
    single = {name: info for name, info in Settings.model_fields.items() if not group_of(info.annotation)}
    parts += [*_table("## The file itself", single, {}), ""]
    for name, info in Settings.model_fields.items():
        model = group_of(info.annotation)
        if model is not None:
            flags = model.model_fields if name in ("server", "engine") else {}
            title = f"## `{name}[]`" if info.default == () else f"## `{name}`"
            parts += [*_table(title, model.model_fields, flags, model.__doc__), ""]
    own = {
        name: info
        for name, info in PluginSettings.model_fields.items()
        if name not in DraftingSettings.model_fields
    }
    parts += [*_table("## Plug-in in vLLM", own, {}, PLUGIN_INTRODUCTION), ""]
    parts += ["## Other environment variables", "", "| variable | meaning |", "|---|---|"]
    parts += [f"| `${name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(parts) + "\n"


def _table(
    title: str, fields: Mapping[str, FieldInfo], flags: Collection[str], text: str | None = None
) -> Iterator[str]:
    yield from (title, "")
    if text:
        yield from (" ".join(text.split()).replace("``", "`"), "")
    yield from ("| setting | default | flag | meaning |", "|---|---|---|---|")
    for name, info in fields.items():
        default = "required" if info.is_required() else f"`{json.dumps(plain(info.default))}`"
        has_flag = name in flags and not isinstance(info.default, tuple)
        flag = f"`--{name.replace('_', '-')}`" if has_flag else ""
        yield f"| `{name}` | {default} | {flag} | {_cell(info)} |"


def _cell(info: FieldInfo) -> str:
    """Return description, choices and limits of a setting."""
    kinds = [kind for kind in (info.annotation, *get_args(info.annotation)) if get_origin(kind) is Literal]
    choices = ", ".join(str(choice) for kind in kinds for choice in get_args(kind))
    limits = [
        f"{sign} {getattr(one, name)}"
        for one in info.metadata
        for name, sign in SIGNS.items()
        if hasattr(one, name)
    ]
    more = "; ".join(filter(None, (choices, " and ".join(limits))))
    text = html.escape(info.description or "", quote=False).replace("|", "\\|")
    return f"{text} ({more})" if more else text


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
    "reference/http.md": endpoints,
}

WRITTEN = {SETTINGS: settings, SETTINGS_FILE: settings_file}  # pages in the repository that are only made

if __name__ == "__main__":
    for path, make in WRITTEN.items():
        path.write_text(make(), encoding="utf-8")
    ENDPOINTS.write_text(with_fields(ENDPOINTS.read_text(encoding="utf-8")), encoding="utf-8")
