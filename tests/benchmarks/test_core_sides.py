"""Both sides do the same work. The peer's part runs if the peer is installed."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.errors import ConfigError
from benchmarks.core.ours import (
    OurDecoder,
    OurDecoderEverySource,
    OurDecoderLearned,
    OurDecoderTwoThreads,
)
from benchmarks.core.sides import Batch, Decoder, Side, Tokens, our_side, peer_side


def peer_or_skip() -> Side:
    try:
        return peer_side("arctic")
    except ConfigError as error:
        pytest.skip(str(error))


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, np.int32)


@pytest.fixture(params=["ours", "arctic"])
def side(request: pytest.FixtureRequest) -> Side:
    return our_side() if request.param == "ours" else peer_or_skip()


@pytest.fixture(params=["ours", "two threads", "every source", "arctic"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    ours = {"ours": OurDecoder, "two threads": OurDecoderTwoThreads, "every source": OurDecoderEverySource}
    return ours[request.param]() if request.param in ours else peer_or_skip().decoder()


def step(decoder: Decoder, request: str, text: Tokens, num_new: int) -> list[int]:
    [draft] = decoder.step(Batch([(request, text[-num_new:])], [text[-64:]]))
    return list(draft.token_ids)


def test_documents_go_in_and_out(side: Side) -> None:
    index = side.index()
    for document in (ids(1, 2, 3, 4), ids(1, 2, 5), ids(6, 7)):
        index.add(document)
    assert [index.evict(num_tokens) for num_tokens in (1, 3, 100, 1)] == [4, 3, 2, 0]


def test_a_decoder_drafts_from_past_outputs_and_from_the_prompt(decoder: Decoder) -> None:
    decoder.learn(ids(1, 2, 3, 4, 5, 6))
    prompt = ids(20, 21, 22, 23, 24, 25)
    decoder.start("a", prompt)
    assert step(decoder, "a", np.concatenate([prompt, ids(1, 2, 3)]), 3) == [4, 5, 6]
    assert step(decoder, "a", np.concatenate([prompt, ids(1, 2, 3, 21, 22)]), 2) == [23, 24]
    decoder.finish("a")
    decoder.start("a", prompt)  # the name is free again
    assert step(decoder, "a", np.concatenate([prompt, ids(99)]), 1) == []


def test_the_learned_rule_drafts_by_its_estimates() -> None:
    output, decoder = np.arange(200, dtype=np.int32), OurDecoderLearned()
    decoder.learn(output)
    decoder.start("a", ids(500, 501))
    drafted = step(decoder, "a", output[:100], 100)
    assert 0 < len(drafted) <= 32
    assert drafted == list(range(100, 100 + len(drafted)))


def test_drafts_are_no_longer_than_32_tokens(decoder: Decoder) -> None:
    output = np.arange(200, dtype=np.int32)
    decoder.learn(output)
    decoder.start("a", ids(999))
    assert step(decoder, "a", output[:100], 100) == list(range(100, 132))


def test_a_prompt_is_indexed_in_the_background() -> None:
    decoder = OurDecoder()
    decoder.start("a", ids(20, 21, 22, 23), wait=False)
    decoder.wait("a")
    assert step(decoder, "a", ids(20, 21), 2) == [22, 23]


@pytest.mark.usefixtures("without_peer")
def test_a_peer_that_is_missing_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match="make bench-peer"):
        peer_side("arctic")
