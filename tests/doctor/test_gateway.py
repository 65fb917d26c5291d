"""``agentspec doctor --url`` against real gateways, whole and broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.commands.gateway_call import Gateway
from agentspec.doctor.finding import Level
from agentspec.doctor.servers import MAX_TOKENS, STAGE, check_gateway
from agentspec.gateway import ApiKeys
from agentspec.gateway.auth.api_keys import ApiKey, digest_of
from agentspec.stats import SpeculationStats
from tests.gateway.support import scripted
from tests.gateway.support.live import serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

KEY = "key-of-a-tenant"


def findings(url: str, key: str | None = None) -> dict[str, tuple[Level, str]]:
    return {one.subject: (one.level, one.text) for one in check_gateway(Gateway(url, key))}


@pytest.mark.parametrize("tail", ["", "/", "/v1"])
def test_a_gateway_that_works(tail: str) -> None:
    engine = ScriptedEngine()
    with serving_engine(engine) as root:
        found = findings(f"{root}{tail}")
    assert {subject: level for subject, (level, _) in found.items()} == dict.fromkeys(
        ("gateway", "model", "tags", "drafts", "outputs"), Level.OK
    )
    assert found["model"][1] == "the engine serves scripted"
    plain, drafted = engine.requests
    assert {request.tags.stage.name for request in engine.requests} == {STAGE}
    assert (plain.tags.max_draft, drafted.tags.max_draft) == (0, None)
    assert [request.tags.learn for request in engine.requests] == [False, False]
    assert drafted.tags.prediction == "".join(engine.steps)
    assert plain.sampling.max_tokens == MAX_TOKENS


@contextmanager
def served(**options: Any) -> Iterator[str]:
    with serving_engine(ScriptedEngine(), **options) as root:
        yield root


@pytest.mark.parametrize(
    ("key", "subject", "said"),
    [
        (None, "key", "Name a key of this gateway: --key"),
        ("another", "key", "Name a key of this gateway: --key"),
        (KEY, "outputs", "identical"),
    ],
)
def test_keys(key: str | None, subject: str, said: str) -> None:
    with served(keys=ApiKeys([ApiKey(digest_of(KEY), "acme")])) as root:
        found = findings(root, key)
    assert said in found[subject][1]
    assert list(found)[-1] == subject
    assert found[subject][0] is (Level.OK if key == KEY else Level.PROBLEM)


def test_nothing_there(unused_tcp_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", f"http://127.0.0.1:{unused_tcp_port}"]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("problem  gateway: no answer from ")


def test_an_engine_that_is_down(unused_tcp_port: int) -> None:
    with serving_proxy(f"http://127.0.0.1:{unused_tcp_port}") as root:
        found = findings(root)
    level, said = found["engine"]
    assert (level, list(found)) == (Level.PROBLEM, ["gateway", "engine"])
    assert said.startswith("it does not answer: status 5")


def test_a_model_that_can_not_answer() -> None:
    with serving_engine(ScriptedEngine(failure=RuntimeError("broken"))) as root:
        level, said = findings(root)["call"]
    assert (level, said.startswith("status 500")) == (Level.PROBLEM, True)


def test_an_engine_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "SPECULATION", SpeculationStats(num_steps=4))
    with served() as root:
        level, said = findings(root)["drafts"]
    assert (level, "drafted nothing" in said) == (Level.PROBLEM, True)


def test_an_engine_that_answers_otherwise() -> None:
    class Wavering(ScriptedEngine):
        def _script(self, request: Any) -> Any:
            self.steps = (*self.steps, "?")
            return super()._script(request)

    with serving_engine(Wavering()) as root:
        assert findings(root)["outputs"][0] is Level.WARNING
