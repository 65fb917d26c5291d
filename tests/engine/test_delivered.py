"""What a client received of an output is all that the trees learn and other engines get."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from agentspec import Forest
from agentspec.draft import Draft
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.sampling.stop import ShownTokens, StopStrings
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import Tokens
from agentspec.tags import Tags
from tests.support.fakes import STAGE, SteppedEngine
from tests.support.sharing import Sharing

PROMPT = [5, 6, 7]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=4, max_tokens=12)


def held(forest: Forest) -> list[int]:
    """Return the numbers of outputs and tokens in the stage's tree."""
    forest.settle()
    return [forest.stats(STAGE).num_sequences, forest.stats(STAGE).num_tokens]


def request(name: str, prompt: list[int], sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(name, prompt, sampling, Tags(STAGE))


def output_of(make: Any, prompt: list[int]) -> list[int]:
    engine = make()
    engine.submit(request("r", prompt))
    engine.run()
    return list(engine.output("r"))


@pytest.fixture
def make(exact_model: Transformer, tokenizer: Tokenizer) -> Any:
    return partial(SteppedEngine, exact_model, tokenizer)


@pytest.fixture
def forest() -> Forest:
    return Forest()


@pytest.fixture
def sharing() -> Sharing:
    return Sharing()


@pytest.fixture
def engine(make: Any, forest: Forest, sharing: Sharing) -> Any:
    engine = make(forest, num_slots=1)
    engine.decoder.sharing = sharing
    return engine


def whole(tokenizer: Tokenizer, output: list[int], text: str) -> list[int]:
    """Return the first tokens whose text is within ``text``, as far as they end with whole characters."""
    ends = []
    stream, size = tokenizer.detokenizer(), 0
    for number, token in enumerate(output, 1):
        piece = stream.push([token])
        size += len(piece)
        if piece and size <= len(text):
            ends.append(number)
    return output[: max(ends, default=0)]


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("size", [1, 2, 4])
def test_nothing_of_a_stop_string_is_learned(
    make: Any, engine: Any, forest: Forest, sharing: Sharing, tokenizer: Tokenizer, begin: int, size: int
) -> None:
    text = tokenizer.decode(output_of(make, PROMPT))
    stop = text[begin:][:size]
    engine.submit(request("r", PROMPT, replace(GREEDY, stop=(stop,))))
    engine.run()
    assert engine.text("r") == text[: text.index(stop)]
    expected = whole(tokenizer, engine.output("r"), engine.text("r"))
    assert len(expected) < len(engine.output("r"))
    assert [tokens for tokens, *_ in sharing.shared] == [expected] * bool(expected)
    assert held(forest) == [bool(expected), len(expected)]
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert stats.num_output_tokens == len(engine.output("r"))
    forest.check_integrity()


def test_an_output_without_its_stop_string_is_learned_whole(
    engine: Any, forest: Forest, sharing: Sharing
) -> None:
    engine.submit(request("r", PROMPT, replace(GREEDY, stop=("never",))))
    for _ in range(4):
        engine.decoder.step()
        assert held(forest) == [0, 0]
    engine.run()
    assert [tokens for tokens, *_ in sharing.shared] == [engine.output("r")]
    assert held(forest) == [1, len(engine.output("r"))]


@pytest.mark.parametrize("stop", [(), ("never",)])
@pytest.mark.parametrize(
    ("num_choices", "num_ended"), [(1, 0), (2, 0), (2, 1), (3, 2)], ids=lambda number: str(number)
)
def test_of_a_cancelled_call_nothing_is_kept(
    engine: Any, forest: Forest, sharing: Sharing, stop: tuple[str, ...], num_choices: int, num_ended: int
) -> None:
    live = engine.submit(request("r", PROMPT, replace(SAMPLED, n=num_choices, stop=stop)))
    while len(live.ended) < num_ended or not engine.deltas("r", num_ended):
        engine.decoder.step()
    live.is_cancelled = True
    engine.run()
    assert sharing.shared == []
    assert held(forest) == [0, 0]
    forest.check_integrity()


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_all_choices_of_an_answered_call_are_kept(
    engine: Any, forest: Forest, sharing: Sharing, stop: tuple[str, ...]
) -> None:
    engine.submit(request("r", PROMPT, replace(SAMPLED, n=3, stop=stop)))
    engine.run()
    outputs = [engine.output("r", index) for index in range(3)]
    assert [tokens for tokens, *_ in sharing.shared] == outputs
    assert held(forest) == [3, sum(map(len, outputs))]


def test_a_step_after_the_client_has_left_is_not_counted(make: Any) -> None:
    class Leaving(Forest):
        live: Any = None

        def step(self, *arguments: Any, **options: Any) -> list[Draft]:
            self.live.is_cancelled = len(served.output("r")) >= 3
            return super().step(*arguments, **options)

    forest = Leaving()
    served = make(forest)
    forest.live = served.submit(request("r", PROMPT))
    served.run()
    stats = served.decoder.counters.snapshot()[STAGE]
    assert stats.num_output_tokens == len(served.output("r")) < 8


@pytest.mark.parametrize(
    ("pieces", "stop", "num"),
    [
        (["ab", "c", "d"], "cd", 1),
        (["ab", "cd", "e"], "d", 1),  # the token before has no part of it
        (["a", "", "", "\N{EURO SIGN}b"], "\N{EURO SIGN}", 1),  # the first bytes of a character
        (["a", "", "bc", "d"], "d", 3),
        (["abc"], "a", 0),
        (["a", "a", "b"], "ab", 1),
        (["a", "b", "c"], "x", 3),
    ],
)
def test_tokens_that_were_shown(pieces: list[str], stop: str, num: int) -> None:
    stops, tokens = StopStrings((stop,)), ShownTokens()
    for piece in pieces:
        tokens.add(piece, stops.push(piece))
    assert tokens.num == num


def test_what_a_request_learns_at_its_end_takes_the_place_of_its_output(forest: Forest) -> None:
    def ids(*tokens: int) -> Tokens:
        return np.array(tokens, np.int32)

    for name, at_end in (("r0", True), ("r1", False)):
        forest.start(name, STAGE, ids(1), session="run", learns_at_end=at_end)
        forest.observe(name, ids(2, 3, 4))
    assert held(forest) == [1, 3]
    forest.finish("r0", output=ids(2, 3))
    forest.finish("r1", output=ids(5))
    assert held(forest) == [2, 3]
    forest.start("r2", STAGE, ids(1), session="run", learns_at_end=True)
    assert forest.step([("r2", ids(2))])[0].token_ids.tolist()[:1] == [3]  # also of its session
    forest.finish("r2", learn=False, output=ids(9, 9, 9))
    assert held(forest) == [2, 3]
    forest.check_integrity()
