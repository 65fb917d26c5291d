from __future__ import annotations

import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.checks import check_version, parse


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.5", "v0.32.0rc1"])
def test_versions_it_was_written_for_are_let_through(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.26.0", "0.31.1", "0.34.0", "1.0.0", "0.4.0", "0.3.3"])
def test_others_are_refused_unless_allowed(version: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.32 to 0\.33") as caught:
        check_version(version)
    assert repr(version) in str(caught.value)
    check_version(version, allows_untested=True)


def test_a_version_has_two_numbers() -> None:
    assert parse("0.32.0") == (0, 32)
    with pytest.raises(ConfigError, match="dev"):
        parse("dev")
