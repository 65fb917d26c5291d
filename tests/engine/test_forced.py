"""Forced outputs: the model steps, and a record decides the tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec import Forest, ForestConfig
from agentspec.config import DraftConfig
from agentspec.engine.model.checkpoint import load_model, load_shape
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import CheckpointError, ContextLengthError, RequestError
from agentspec.generation import ForcedOutput, GenerationRequest, SamplingParams
from agentspec.models import bundled_model_dir
from agentspec.recorded import RecordedAnswer
from agentspec.tags import Tags
from tests.support.checkpoints import make_checkpoint
from tests.support.fakes import STAGE, OracleProposer, RandomProposer, SteppedEngine

TEXTS = (
    "SELECT name FROM city WHERE id = 7",
    'I look.\n<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp/zażółć"}}\n</tool_call>',
    "<|end|> is text here, e\N{COMBINING ACUTE ACCENT} stays as it is, \N{PARTY POPPER} too",
    "",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=30)


def request(
    name: str, prompt: str | list[int], *forced: ForcedOutput, sampling: SamplingParams = GREEDY
) -> GenerationRequest:
    return GenerationRequest(name, prompt, sampling, Tags(STAGE), forced=forced or None)


@pytest.mark.parametrize("mode", ["off", "chain", "tree"])
def test_what_is_dictated_comes_out(exact_model: Transformer, tokenizer: Tokenizer, mode: str) -> None:
    draft = DraftConfig(mode=mode, max_tokens=8)
    engine = SteppedEngine(exact_model, tokenizer, Forest(ForestConfig()), draft=draft, max_model_len=400)
    for turn in ("first", "again"):  # the second time, the forest has learned the texts
        for index, text in enumerate(TEXTS):
            engine.submit(request(f"{turn}{index}", "the question", ForcedOutput(text)))
        num_steps = engine.run()
    for index, text in enumerate(TEXTS):
        assert engine.text(f"again{index}") == text
        assert engine.output(f"again{index}")[-1] in tokenizer.eos_ids
        assert engine.deltas(f"again{index}")[-1].finish_reason == "stop"
    longest = max(len(tokenizer.encode_output(text)) for text in TEXTS)
    assert (num_steps > longest) == (mode == "off")


@pytest.mark.parametrize("is_tree", [False, True])
def test_it_is_no_matter_what_is_drafted(
    exact_model: Transformer, tokenizer: Tokenizer, is_tree: bool
) -> None:
    text = TEXTS[1]
    ids = [*tokenizer.encode_output(text).tolist(), min(tokenizer.eos_ids)]
    prompt = tuple(tokenizer.encode_prompt("the question").tolist())
    for proposer in (
        RandomProposer(is_tree=is_tree),
        OracleProposer({prompt: ids}, is_tree=is_tree, wrong=0.3),
    ):
        engine = SteppedEngine(exact_model, tokenizer, proposer, max_model_len=400)
        engine.submit(request("r", "the question", ForcedOutput(text)))
        engine.run()
        assert engine.output("r") == ids
        engine.cache.check_integrity()


def test_others_in_the_batch_do_not_change(exact_model: Transformer, tokenizer: Tokenizer) -> None:
    sampled = SamplingParams(temperature=0.9, seed=5, max_tokens=25, presence_penalty=0.5)
    others = [request("greedy", "select"), request("sampled", "name", sampling=sampled)]
    alone = SteppedEngine(exact_model, tokenizer)
    for other in others:
        alone.submit(other)
    alone.run()
    forest = Forest(ForestConfig())
    mixed = SteppedEngine(exact_model, tokenizer, forest, max_model_len=400)
    for number in range(2):
        mixed.submit(request(f"forced{number}", "select", ForcedOutput(TEXTS[0])))
        for other in others:
            mixed.submit(replace(other, request_id=f"{other.request_id}{number}"))
        mixed.run()
        assert mixed.text(f"forced{number}") == TEXTS[0]
        for other in others:
            assert mixed.output(f"{other.request_id}{number}") == alone.output(other.request_id)


def test_the_requests_own_sampling_has_no_meaning(exact_model: Transformer, tokenizer: Tokenizer) -> None:
    asked = SamplingParams(
        temperature=1.5, frequency_penalty=1.0, json_schema={}, stop=("name",), max_tokens=2, logprobs=1, n=2
    )
    engine = SteppedEngine(exact_model, tokenizer)
    engine.submit(request("r", "select", ForcedOutput(TEXTS[0]), ForcedOutput("no"), sampling=asked))
    engine.run()
    assert [engine.text("r", index) for index in range(2)] == [TEXTS[0], "no"]
    told = [one for delta in engine.deltas("r") for one in delta.logprobs]
    assert [one.token_id for one in told] == engine.output("r")
    assert all(one.logprob < 0 for one in told)


def test_what_was_cut_ends_by_its_length(exact_model: Transformer, tokenizer: Tokenizer) -> None:
    engine = SteppedEngine(exact_model, tokenizer)
    engine.submit(request("r", "select", ForcedOutput([7, 8, 9], is_cut=True)))
    engine.run()
    assert engine.output("r") == [7, 8, 9]
    assert engine.deltas("r")[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("forced", "error", "said"),
    [
        ([ForcedOutput("a"), ForcedOutput("b")], RequestError, "2 forced outputs"),
        ([ForcedOutput("", is_cut=True)], RequestError, "forced must not be empty"),
        ([ForcedOutput([10**6])], RequestError, "1000000 is no token id"),
        ([ForcedOutput("word " * 500)], ContextLengthError, "exceed the context of 128"),
    ],
)
def test_what_can_not_be_dictated(
    exact_model: Transformer,
    tokenizer: Tokenizer,
    forced: list[ForcedOutput],
    error: type[RequestError],
    said: str,
) -> None:
    proposer = RandomProposer(is_tree=False)
    engine = SteppedEngine(exact_model, tokenizer, proposer)
    with pytest.raises(error, match=said):
        engine.submit(request("r", "select", *forced))
    assert not proposer.live


def test_any_text_can_be_written(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    for _ in range(50):
        text = "".join(
            chr(rng.choice([rng.randrange(1, 128), rng.randrange(0xA0, 0xD000)])) for _ in range(40)
        )
        assert tokenizer.decode(tokenizer.encode_output(text)) == text


def test_a_shape_without_weights(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path / "shape")
    whole = load_shape(folder)
    assert "random" not in caplog.text
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        load_model(folder)
    model = load_shape(folder)
    assert "random" in caplog.text
    assert (model.config, model.dtype) == (whole.config, whole.dtype)
    engine = SteppedEngine(model, tokenizer, max_model_len=2 * model.config.max_position_embeddings)
    prompt = [7] * model.config.max_position_embeddings  # positions continue beyond the checkpoint's last
    engine.submit(request("r", prompt, ForcedOutput(TEXTS[0])))
    engine.run()
    assert engine.text("r") == TEXTS[0]


@pytest.mark.parametrize("mode", ["off", "chain", "tree"])
def test_a_kept_prompt_changes_nothing(exact_model: Transformer, tokenizer: Tokenizer, mode: str) -> None:
    """Compare the model's own output after a conversation with first turns cached by earlier requests."""
    turns = ["the question " * 20, TEXTS[1], "then " * 10, TEXTS[2], "and the last one"]
    prompts = ["".join(turns[: 2 * number + 1]) for number in range(3)]
    draft = DraftConfig(mode=mode, max_tokens=8)
    outputs = []
    for keeps_prompts in (False, True):
        forest = Forest(ForestConfig())
        engine = SteppedEngine(
            exact_model, tokenizer, forest, draft=draft, max_model_len=800, keeps_prompts=keeps_prompts
        )
        for number, text in enumerate((TEXTS[1], TEXTS[2])):
            engine.submit(request(f"{number}", prompts[number], ForcedOutput(text)))
            engine.run()
            assert engine.text(f"{number}") == text
        engine.submit(request("own", prompts[2]))
        engine.run()
        outputs.append(engine.output("own"))
        engine.cache.check_integrity()
    assert outputs[0] == outputs[1]
    num_read = sum(len(segment) for one in engine.model.passes for segment in one if not segment.start)
    assert num_read < len(tokenizer.encode_prompt(prompts[0])) + 65


def test_a_template_for_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"ü"}'}}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tools = [{"type": "function", "function": {"name": "ls"}}]
    with pytest.raises(RequestError, match="has no 'tools'"):
        Tokenizer.load(bundled_model_dir()).apply_chat_template(messages, tools)
    written = Tokenizer.load(bundled_model_dir(), needs_tools=True).apply_chat_template(messages, tools)
    tool = '{"type": "function", "function": {"name": "ls"}}'
    called = RecordedAnswer("", (("ls", '{"path":"ü"}'),)).written()
    assert written == f"<|tools|>\n{tool}\n<|user|>\nlook\n<|assistant|>\n{called}\n<|assistant|>\n"
