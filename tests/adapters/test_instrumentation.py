from __future__ import annotations

from collections.abc import Callable

import pytest

from agentspec.adapters import instrumentation
from agentspec.adapters.instrumentation import Instrumentation, replace_method, replacements
from agentspec.errors import AdapterError


class Client:
    def build(self) -> list[str]:
        return []


def tagging(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda client: [*original(client), "tagged"]


def test_what_cannot_be_replaced_as_a_whole_stays_as_it_was() -> None:
    before = dict(vars(Client))
    incomplete = Instrumentation(replacements((Client, "build", tagging), (Client, "send", tagging)))
    with pytest.raises(AdapterError, match=r"test_instrumentation\.Client has no 'send'"):
        incomplete.instrument(workflow="flow")
    assert dict(vars(Client)) == before
    assert not incomplete.is_in_force
    with pytest.raises(AdapterError, match=r"instrumentation has no 'send'"):
        replace_method(instrumentation, "send", tagging)


def test_a_method_that_is_replaced_twice_is_put_back() -> None:
    original = vars(Client)["build"]
    twice = Instrumentation(replacements((Client, "build", tagging), (Client, "build", tagging)))
    undo = twice.instrument()
    assert Client().build() == ["tagged", "tagged"]
    undo()
    assert vars(Client)["build"] is original
