"""The text of ``agentspec.yaml`` with every setting in it, some of them set. All comments stay in place.

The text is deploy/agentspec.yaml, which describes each setting. This module knows no setting: a line
that begins with ``#`` and a name is a setting that is not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

REFERENCE = Path(__file__).with_name("agentspec.yaml")
MOST_COLUMNS = 1 << 20
_SETTING = re.compile(r"#?(?P<indent> *(?:- )?)(?P<name>\w+):(?P<value>.*?)(?P<comment> +#.*)?")


class SettingsFile:
    """All settings with their defaults, some of them changed."""

    def __init__(self) -> None:
        self._lines = REFERENCE.read_text(encoding="utf-8").splitlines()

    @property
    def text(self) -> str:
        """The whole file."""
        return "\n".join(self._lines) + "\n"

    def set(self, group: str, values: Mapping[str, Any]) -> None:
        """Set some of a group's settings. Raises KeyError if there is no such setting."""
        start, end = self._group(group)
        self._set_name(start)
        for name, value in values.items():
            self._set_value(self._line(name, start + 1, end), value)

    def add(self, group: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replace a group's example by the first entry, and append the others."""
        first, *others = entries
        self.set(group, first)
        _, end = self._group(group)
        self._lines[end:end] = [line for entry in others for line in _entry(entry)]

    def set_alone(self, name: str, value: Any) -> None:
        """Set a setting outside of any group."""
        self._set_value(self._line(name, 0, len(self._lines)), value)

    def _group(self, name: str) -> tuple[int, int]:
        """Return the group's first line, and the line after its last."""
        start = self._line(name, 0, len(self._lines))
        return start, next(index for index in range(start, len(self._lines) + 1) if self._is_empty(index))

    def _line(self, name: str, start: int, end: int) -> int:
        for index in range(start, end):
            setting = _SETTING.fullmatch(self._lines[index])
            if setting and setting["name"] == name:
                return index
        raise KeyError(name)

    def _is_empty(self, index: int) -> bool:
        return index == len(self._lines) or not self._lines[index]

    def _set_name(self, index: int) -> None:
        self._lines[index] = self._lines[index].removeprefix("#")

    def _set_value(self, index: int, value: Any) -> None:
        line = self._lines[index]
        setting = _SETTING.fullmatch(line)
        assert setting is not None
        text = f"{setting['indent']}{setting['name']}: {_scalar(value)}"
        comment = (setting["comment"] or "").lstrip()
        column = setting.start("comment") + len(setting["comment"] or "") - len(comment)
        self._lines[index] = f"{text.ljust(column - 1)} {comment}" if comment else text


def _entry(values: Mapping[str, Any]) -> list[str]:
    lines = [f"    {name}: {_scalar(value)}" for name, value in values.items()]
    return [f"  - {lines[0].lstrip()}", *lines[1:]]


def yaml_text(value: Any, *, is_flow: bool) -> str:
    """Return a value as YAML: on one line if ``is_flow``, else in blocks. Groups keep their order."""
    written = StringIO()
    dumper: Any = YAML(typ="safe", pure=True)  # its types lack some settings
    dumper.sort_base_mapping_type_on_output = False
    dumper.default_flow_style, dumper.width = is_flow, MOST_COLUMNS
    dumper.dump(value, written)
    return written.getvalue()


def _scalar(value: Any) -> str:
    return yaml_text(value, is_flow=True).removesuffix("...\n").rstrip("\n")
