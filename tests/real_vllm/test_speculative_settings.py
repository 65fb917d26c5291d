"""The speculative settings that vLLM's own parser makes of all arguments, with model runner V1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.launch import PLACES
from tests.real_vllm.support.lossy import HARMLESS, LOSSY
from tests.real_vllm.support.started import check, parsed, speculative
from tests.vllm_plugin.support.speculative_arguments import (
    CHANGED,
    CHANGED_BY_FILE,
    UNCHANGED,
    UNCHANGED_BY_FILE,
    by_file,
)


@pytest.mark.parametrize("arguments", CHANGED)
def test_refused_arguments_would_change_the_settings(arguments: tuple[str, ...]) -> None:
    assert speculative(parsed(arguments)) != speculative(parsed())


@pytest.mark.parametrize("text", CHANGED_BY_FILE)
def test_refused_files_would_change_the_settings_or_be_overridden(text: str, tmp_path: Path) -> None:
    found = speculative(parsed(by_file(text, tmp_path)))
    is_whole = text.startswith(("speculative-config:", "speculative_config:"))
    assert (found == speculative(parsed())) == is_whole  # the command line's JSON replaces the file's


@pytest.mark.parametrize("arguments", UNCHANGED)
def test_other_arguments_leave_the_settings_alone(arguments: tuple[str, ...]) -> None:
    found = parsed(arguments)
    assert found is not None
    assert speculative(found) == speculative(parsed())


@pytest.mark.parametrize("text", UNCHANGED_BY_FILE)
def test_other_files_leave_the_settings_and_our_places_alone(text: str, tmp_path: Path) -> None:
    found, ours = parsed(by_file(text, tmp_path)), parsed()
    assert found is not None
    assert speculative(found) == speculative(ours)
    for name in PLACES:
        assert getattr(found, name.strip("-")) == getattr(ours, name.strip("-"))


@pytest.mark.parametrize(("text", "changes"), LOSSY)
def test_a_worker_refuses_lossy_settings(text: str, changes: dict[str, Any]) -> None:
    arguments = parsed()
    assert arguments is not None
    with pytest.raises(ConfigError, match=rf"speculative setting {text}, .*: leave it out, or set it to "):
        check(arguments, changes)


@pytest.mark.parametrize("changes", HARMLESS)
def test_a_worker_takes_harmless_settings(changes: dict[str, Any]) -> None:
    arguments = parsed()
    assert arguments is not None
    check(arguments, changes)
