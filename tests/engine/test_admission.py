from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ContextLengthError, RequestError
from agentspec.generation import (
    ForcedOutput,
    GenerationRequest,
    PromptOptions,
    SamplingParams,
    WrittenConstraint,
)
from agentspec.tags import Tags
from tests.support.fakes import STAGE, RecordingProposer, SteppedEngine

CONTEXT = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


@pytest.fixture
def proposer() -> RecordingProposer:
    return RecordingProposer()


@pytest.fixture
def engine(exact_model: Transformer, tokenizer: Tokenizer, proposer: RecordingProposer) -> SteppedEngine:
    return SteppedEngine(exact_model, tokenizer, proposer, max_model_len=CONTEXT)


def request(prompt: Any, sampling: SamplingParams = GREEDY, **fields: Any) -> GenerationRequest:
    return GenerationRequest("r", prompt, sampling, Tags(STAGE, **fields))


def test_a_prompt_is_text_ids_or_messages(
    engine: SteppedEngine, tokenizer: Tokenizer, proposer: RecordingProposer
) -> None:
    messages = [{"role": "user", "content": "name"}]
    rendered = tokenizer.encode(tokenizer.apply_chat_template(messages)).tolist()
    for name, prompt, ids in (
        ("a", "SELECT name", tokenizer.encode("SELECT name").tolist()),
        ("b", [5, 6, 7], [5, 6, 7]),
        ("c", messages, rendered),
    ):
        live = engine.submit(replace(request(prompt), request_id=name))
        assert proposer.prompts[name] == ids
        assert live.num_prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [("", "prompt"), ([], "prompt"), ([1, -1], "prompt"), ([384], "prompt"), ([1, "a"], "prompt")],
)
def test_a_bad_prompt_is_refused(
    engine: SteppedEngine, proposer: RecordingProposer, prompt: Any, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        engine.submit(request(prompt))
    assert caught.value.param == param
    assert not proposer.prompts
    assert not engine.decoder.has_work


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens"), [(CONTEXT, None), (CONTEXT + 5, 1), (CONTEXT - 3, 4), (2, CONTEXT)]
)
def test_what_exceeds_the_context_is_refused(
    engine: SteppedEngine, num_prompt_tokens: int, max_tokens: int | None
) -> None:
    with pytest.raises(ContextLengthError) as caught:
        engine.submit(request([5] * num_prompt_tokens, replace(GREEDY, max_tokens=max_tokens)))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "num_output"),
    [(CONTEXT - 4, 4, 4), (CONTEXT - 1, None, 1), (CONTEXT - 1, 1, 1), (5, None, CONTEXT - 5)],
)
def test_the_context_can_be_filled_to_its_last_token(
    engine: SteppedEngine, num_prompt_tokens: int, max_tokens: int | None, num_output: int
) -> None:
    engine.submit(
        request([5] * num_prompt_tokens, SamplingParams(0.0, max_tokens=max_tokens, ignore_eos=True))
    )
    engine.run()
    assert len(engine.output("r")) == num_output
    assert engine.deltas("r")[-1].finish_reason == "length"


def test_a_tokenizer_that_knows_more_than_the_model_is_noticed(
    engine: SteppedEngine, proposer: RecordingProposer
) -> None:
    engine.admission._vocab_size = 300
    engine.submit(replace(request("x"), request_id="fits"))
    with pytest.raises(RequestError, match="up to 299, not 3") as caught:
        engine.submit(request("SELECT name, price FROM items"))
    assert caught.value.param == "prompt"
    assert proposer.live == {"fits"}


def test_bad_sampling_is_refused_before_anything_starts(
    engine: SteppedEngine, proposer: RecordingProposer
) -> None:
    with pytest.raises(RequestError) as caught:
        engine.submit(request("x", replace(GREEDY, temperature=9.0)))
    assert caught.value.param == "temperature"
    with pytest.raises(RequestError) as caught:
        engine.submit(request("x", replace(GREEDY, json_schema={"type": "strange"})))
    assert caught.value.param == "response_format"
    assert not proposer.prompts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {384: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (5, 384)}, "allowed_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"written": WrittenConstraint("regex", "("), "constraint_param": "guided_regex"}, "guided_regex"),
        ({"json_schema": {"type": 3}, "constraint_param": "guided_json"}, "guided_json"),
    ],
)
def test_sampling_that_is_refused_names_its_field(
    engine: SteppedEngine, proposer: RecordingProposer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        engine.submit(request("x", replace(GREEDY, **fields)))
    assert caught.value.param == param
    assert not proposer.prompts


def test_a_stop_token_ends_the_output_and_is_not_shown(engine: SteppedEngine, tokenizer: Tokenizer) -> None:
    """Not before min_tokens, and ignore_eos does not concern it."""
    free = replace(GREEDY, max_tokens=8, ignore_eos=True)
    engine.submit(replace(request("x", free), request_id="free"))
    engine.run()
    ids = engine.output("free")
    stop = ids[3]
    at = ids.index(stop)
    engine.submit(replace(request("x", replace(free, stop_token_ids=(stop,))), request_id="stopped"))
    early = replace(free, stop_token_ids=(stop,), min_tokens=at + 1)
    engine.submit(replace(request("x", early), request_id="early"))
    engine.run()
    assert engine.output("stopped") == ids[: at + 1]
    assert engine.deltas("stopped")[-1].finish_reason == "stop"
    text = "".join(delta.text for delta in engine.deltas("stopped"))
    assert text == tokenizer.decode(ids[:at])
    assert engine.output("early")[:at] == ids[:at]
    assert engine.output("early")[at] != stop


def test_a_stop_string_before_min_tokens_is_text(engine: SteppedEngine) -> None:
    free = replace(GREEDY, max_tokens=8, ignore_eos=True)
    engine.submit(replace(request("x", free), request_id="free"))
    engine.run()
    whole = "".join(delta.text for delta in engine.deltas("free"))
    stop = next(char for char in whole if char.isascii())
    for name, fields in (("stopped", {}), ("late", {"min_tokens": 8})):
        engine.submit(replace(request("x", replace(free, stop=(stop,), **fields)), request_id=name))
        engine.run()
    assert "".join(delta.text for delta in engine.deltas("stopped")) == whole[: whole.index(stop)]
    assert "".join(delta.text for delta in engine.deltas("late")) == whole


def test_the_proposer_is_told_what_the_request_asks_for(
    engine: SteppedEngine, tokenizer: Tokenizer, proposer: RecordingProposer
) -> None:
    engine.submit(request("x", session="s1", prediction="SELECT", learn=False, max_draft=3, min_match=2))
    told = proposer.settings["r"]
    assert (told["stage"], told["session"], told["learn"]) == (STAGE, "s1", False)
    assert told["prediction_ids"].tolist() == tokenizer.encode("SELECT").tolist()
    assert (told["draft"].max_tokens, told["draft"].min_match) == (3, 2)
    engine.run()
    assert proposer.learned == {"r": False}


def test_a_request_can_only_lower_the_draft_length(
    engine: SteppedEngine, proposer: RecordingProposer
) -> None:
    engine.submit(request("x", max_draft=1000))
    assert proposer.settings["r"]["draft"].max_tokens == 8
    for field, value in (("max_draft", -1), ("min_match", 0)):
        with pytest.raises(RequestError, match="draft setting"):
            engine.submit(replace(request("x", **{field: value}), request_id="other"))


def test_an_id_that_is_live_is_refused(engine: SteppedEngine, proposer: RecordingProposer) -> None:
    engine.submit(replace(request("x"), request_id="r#1"))
    with pytest.raises(RequestError) as caught:
        engine.submit(request("x", replace(GREEDY, n=3)))
    assert caught.value.code == "duplicate_request"
    assert proposer.live == {"r#1"}  # the first choice was withdrawn


def test_unseeded_requests_differ_and_choices_have_their_own_seed(engine: SteppedEngine) -> None:
    sampling = SamplingParams(temperature=1.5, max_tokens=12)
    for name in ("a", "b"):
        engine.submit(replace(request("x", sampling), request_id=name))
    engine.submit(replace(request("x", replace(sampling, seed=7, n=3)), request_id="n"))
    engine.submit(replace(request("x", replace(sampling, seed=8)), request_id="s"))
    engine.run()
    assert engine.output("a") != engine.output("b")
    assert len({tuple(engine.output("n", index)) for index in range(3)}) == 3
    assert engine.output("n", 1) == engine.output("s")


THINK: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>a"}]
CONTINUED = PromptOptions(add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("fields", "think_tags"),
    [
        ({}, "open"),
        ({"sampling": replace(GREEDY, json_schema={})}, "unknown"),
        ({"sampling": replace(GREEDY, written=WrittenConstraint("regex", "a"))}, "unknown"),
        ({"sampling": replace(GREEDY, grammar='start: "a"')}, "unknown"),
        ({"forced": [ForcedOutput("a")]}, "unknown"),
        ({"prompt": THINK, "prompt_options": CONTINUED}, "open"),
        (
            {"prompt": [*THINK[:1], {"role": "assistant", "content": "b"}], "prompt_options": CONTINUED},
            "known",
        ),
    ],
)
def test_every_delta_says_what_think_tags_are(
    exact_model: Transformer, llama_checkpoint: Path, tmp_path: Path, fields: dict[str, Any], think_tags: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(llama_checkpoint / name)
    template = "{{ messages[-1].content }}</think>{% if add_generation_prompt %}<think>{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    engine = SteppedEngine(exact_model, Tokenizer.load(tmp_path), max_model_len=64)
    engine.submit(replace(request([{"role": "user", "content": "hi"}]), **fields))
    engine.run()
    assert {delta.think_tags for delta in engine.deltas("r")} == {think_tags}
