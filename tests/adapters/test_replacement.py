from __future__ import annotations

from collections.abc import Callable

import pytest

from agentspec.adapters import replacement
from agentspec.adapters.replacement import Tagging, replace_method
from agentspec.errors import AdapterError


class Client:
    def build(self) -> list[str]:
        return []


def tagging(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda client: [*original(client), "tagged"]


def test_what_cannot_be_replaced_as_a_whole_stays_as_it_was() -> None:
    before = dict(vars(Client))
    incomplete = Tagging((Client, "build", tagging), (Client, "send", tagging))
    with pytest.raises(AdapterError, match=r"test_replacement\.Client has no 'send'"):
        incomplete.instrument("flow")
    assert dict(vars(Client)) == before
    assert not incomplete.is_in_force
    with pytest.raises(AdapterError, match=r"replacement has no 'send'"):
        replace_method(replacement, "send", tagging)


def test_a_method_that_is_replaced_twice_is_put_back() -> None:
    original = vars(Client)["build"]
    undo = Tagging((Client, "build", tagging), (Client, "build", tagging)).instrument(None)
    assert Client().build() == ["tagged", "tagged"]
    undo()
    assert vars(Client)["build"] is original
