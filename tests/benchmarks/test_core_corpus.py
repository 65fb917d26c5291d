"""Input of the core benchmark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.replay.calls import TEKKEN, load_tokenizer
from benchmarks.core.corpus import Corpus, load
from benchmarks.core.requests import ACCEPTED_TOKENS, next_batch, requests
from benchmarks.core.sides import DEPTH
from benchmarks.core.sizes import Sizes


@pytest.fixture(scope="module")
def corpus(traces: Path, tiny: Sizes) -> Corpus:
    return load(traces, tiny)


def test_the_tokenizer_is_exact_and_adds_nothing() -> None:
    encode = load_tokenizer(TEKKEN)
    assert encode("").tolist() == []
    assert encode("<s> a plan").dtype == np.int32
    assert np.concatenate([encode("select name"), encode(" from city")]).tolist() == (
        encode("select name from city").tolist()
    )


def test_amounts(corpus: Corpus, tiny: Sizes) -> None:
    assert tiny.corpus_tokens <= sum(map(len, corpus.mixed)) < tiny.corpus_tokens + 200
    assert tiny.corpus_tokens <= sum(map(len, corpus.repeated)) < tiny.corpus_tokens + 600
    assert len(corpus.text) >= tiny.text_tokens
    assert len(corpus.outputs) >= tiny.output_tokens
    assert [document.tolist() for document in corpus.history] == (
        [document.tolist() for document in corpus.mixed[: tiny.num_history]]
    )


def test_every_repeated_document_occurs_equally_often(corpus: Corpus, tiny: Sizes) -> None:
    counts = Counter(document.tobytes() for document in corpus.repeated)
    assert set(counts.values()) == {tiny.copies}
    assert set(counts) <= {document.tobytes() for document in corpus.mixed}


def test_prompts_and_outputs_come_from_sessions_that_the_trees_have_not_seen(corpus: Corpus) -> None:
    text, outputs = corpus.text.tobytes(), corpus.outputs.tobytes()
    assert not any(document.tobytes() in text or document.tobytes() in outputs for document in corpus.mixed)


def test_the_same_traces_give_the_same_corpus(corpus: Corpus, traces: Path, tiny: Sizes) -> None:
    again = load(traces, tiny)
    assert (again.text == corpus.text).all()
    assert [one.tolist() for one in again.repeated] == [one.tolist() for one in corpus.repeated]
    assert (again.prompts(3, 50, seed=1)[2] == corpus.prompts(3, 50, seed=1)[2]).all()


def test_a_folder_without_traces_is_refused(tmp_path: Path, tiny: Sizes) -> None:
    with pytest.raises(ConfigError, match=r"no traces \(\*\.jsonl\.gz\)"):
        load(tmp_path, tiny)


def test_too_few_traces_are_refused(traces: Path, tiny: Sizes) -> None:
    with pytest.raises(ConfigError, match="9000000 tokens are needed"):
        load(traces, replace(tiny, corpus_tokens=9_000_000))


def test_requests_go_on_and_start_over(corpus: Corpus) -> None:
    live = requests(corpus, 4, num_prompt=100, num_output=2 * ACCEPTED_TOKENS)
    assert [len(request.prompt) for request in live] == [100] * 4
    first, second, third = next_batch(live), next_batch(live), next_batch(live)
    for i, request in enumerate(live):
        said = [batch.updates[i][1].tolist() for batch in (first, second, third)]
        assert said[0] + said[1] == request.text[100:].tolist()
        assert said[2] == said[0]
        assert first.contexts[i].tolist() == [*request.prompt[ACCEPTED_TOKENS - DEPTH :], *said[0]]


def test_every_other_request_quotes_its_prompt(corpus: Corpus) -> None:
    for i, request in enumerate(requests(corpus, 6, num_prompt=100, num_output=40)):
        quoted = request.prompt if i % 2 else corpus.outputs
        assert request.text[100:].tobytes() in np.tile(quoted, 2).tobytes()
