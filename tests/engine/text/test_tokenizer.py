# ruff: noqa: E501  (one row per line)
from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers

from agentspec.engine.text.detokenizer import WindowDetokenizer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import CheckpointError, RequestError
from agentspec.generation import PromptOptions

TEXTS = [
    "SELECT name FROM items WHERE price < 10;",
    '{"größe": "naïve", "stadt": "東京"}',
    "🙂🙃 emoji 👩‍👩‍👧 and \x00 control \n\t characters",
    "",
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer in SQL & <JSON>."},
    {"role": "user", "content": "Which items?"},
    {"role": "assistant", "content": "These."},
    {"role": "user", "content": "Größe?"},
]


@pytest.fixture(scope="module")
def tokenizer(llama_checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(llama_checkpoint)


@pytest.fixture(scope="module")
def reference(llama_checkpoint: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(llama_checkpoint)


@pytest.fixture
def own(tmp_path: Path, llama_checkpoint: Path) -> Path:
    """Copy the tokenizer's files so that the test may change them."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(llama_checkpoint / name, tmp_path)
    return tmp_path


def with_template(directory: Path, source: str) -> Tokenizer:
    (directory / "chat_template.jinja").write_text(source)
    return Tokenizer.load(directory)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_as_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert token_ids.dtype == np.int32
    assert token_ids.tolist() == reference.encode(text, add_special_tokens=False)
    assert tokenizer.decode(token_ids) == text


def test_special_tokens_are_recognized_and_not_shown(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("<|im_start|>user<|im_end|>")
    assert token_ids[0] == 1
    assert token_ids[-1] == 2
    assert tokenizer.decode(token_ids) == "user"
    assert tokenizer.token_text(2) == "<|im_end|>"


@pytest.mark.parametrize("text", TEXTS)
def test_prompts_as_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    for special in (True, False):
        ids = tokenizer.encode_prompt(text, options=PromptOptions(add_special_tokens=special)).tolist()
        assert ids == reference(text, add_special_tokens=special)["input_ids"]
        assert tokenizer.decode_prompt(ids) == reference.decode(ids)
        assert tokenizer.token_names(ids) == reference.convert_ids_to_tokens(ids)
    chat = tokenizer.encode_prompt(CONVERSATION).tolist()
    assert chat == reference.apply_chat_template(CONVERSATION, add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode_prompt(chat) == tokenizer.apply_chat_template(CONVERSATION)


@pytest.mark.parametrize("token", [-1, 10_000, 2**40])
def test_what_is_no_token_has_neither_text_nor_name(tokenizer: Tokenizer, token: int) -> None:
    for read in (tokenizer.decode_prompt, tokenizer.token_names):
        with pytest.raises(RequestError, match=str(token)):
            read([5, token])


def test_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_ids == {2, 3}
    assert tokenizer.vocab_size == tokenizer.raw.get_vocab_size()
    assert tokenizer.path_to_json.name == "tokenizer.json"


def test_encoding_a_long_text_lets_other_threads_run(
    tokenizer: Tokenizer,
) -> None:
    num_turns, is_over = 0, False

    def take_turns() -> None:
        nonlocal num_turns
        while not is_over:
            num_turns += 1
            time.sleep(0.0001)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread now runs only if another one yields
    thread = threading.Thread(target=take_turns)
    try:
        thread.start()
        num_before = num_turns
        for _ in range(200):  # the system may run other threads meanwhile, but not each time
            tokenizer.encode("SELECT name FROM items; " * 5000)
            if num_turns > num_before + 1:
                break
        num_during = num_turns - num_before
    finally:
        sys.setswitchinterval(before_s)
        is_over = True
        thread.join()
    assert num_during > 1


def test_token_texts_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = TEXTS[0]
    assert "".join(tokenizer.token_text(i) for i in tokenizer.encode(text).tolist()) == text


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_detokenizer_joins_to_decode(tokenizer: Tokenizer, size: int, seed: int) -> None:
    """Decode random tokens too, which need not be valid UTF-8."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(0, tokenizer.vocab_size, 200)
    if seed == 0:
        token_ids = tokenizer.encode("".join(TEXTS))
    for stream in (tokenizer.detokenizer(), WindowDetokenizer(tokenizer.decode)):
        pieces = [stream.push(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
        if isinstance(stream, WindowDetokenizer) and seed:
            continue  # its text of broken UTF-8 depends on where the window moved on
        assert "".join(pieces) + stream.flush() == tokenizer.decode(token_ids)


def test_detokenizer_never_splits_a_character(tokenizer: Tokenizer) -> None:
    text = "🙂東ß"
    token_ids = tokenizer.encode(text)
    assert len(token_ids) > len(text)
    for stream in (tokenizer.detokenizer(), WindowDetokenizer(tokenizer.decode)):
        pieces = [stream.push([token_id]) for token_id in token_ids]
        assert "\ufffd" not in "".join(pieces)
        assert "".join(pieces) == text
        assert stream.flush() == ""
    for stream in (tokenizer.detokenizer(), WindowDetokenizer(tokenizer.decode)):
        assert stream.push(token_ids[:2]) == ""
        assert stream.flush() == "\ufffd"
        assert stream.flush() == ""


def test_window_detokenizer_does_not_wait_forever(tokenizer: Tokenizer) -> None:
    lone_byte = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_text(i) == "\ufffd")
    stream = WindowDetokenizer(tokenizer.decode)
    assert stream.push([lone_byte] * 100) == "\ufffd" * 100
    assert len(stream._window) <= 100


def test_tokenizer_with_metaspace_and_byte_fallback(own: Path) -> None:
    """Build a SentencePiece tokenizer like Llama 2's and Mistral's, which drops the first space."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab", "ab"]
    vocabulary = {word: i for i, word in enumerate(words)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    raw = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    raw.save(str(own / "tokenizer.json"))
    tokenizer = Tokenizer.load(own)
    text = "ab a 🙂 ab"
    token_ids = tokenizer.encode(text)
    stream = tokenizer.detokenizer()
    pieces = [stream.push([token_id]) for token_id in token_ids]
    assert "".join(pieces) + stream.flush() == text == tokenizer.decode(token_ids)
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_as_transformers(tokenizer: Tokenizer, reference: Any, add_generation_prompt: bool) -> None:
    theirs = reference.apply_chat_template(
        CONVERSATION, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    options = PromptOptions(add_generation_prompt=add_generation_prompt)
    ours = tokenizer.apply_chat_template(CONVERSATION, options=options)
    assert ours == theirs
    assert "SQL & <JSON>" in ours


@pytest.mark.parametrize("content", ["These", "These are\n", " 🙂 "])
@pytest.mark.parametrize("is_trimmed", [False, True])
def test_the_last_message_is_continued_as_in_transformers(own: Path, content: str, is_trimmed: bool) -> None:
    file = own / "chat_template.jinja"
    source = file.read_text()
    if is_trimmed:
        source = source.replace('{{ message.content or "" }}', '{{ (message.content or "") | trim }}')
    file.write_text(source)
    reference = transformers.AutoTokenizer.from_pretrained(own)
    messages = [*CONVERSATION, {"role": "assistant", "content": content}]
    theirs = reference.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    options = PromptOptions(add_generation_prompt=False, continue_final_message=True)
    ours = Tokenizer.load(own).apply_chat_template(messages, options=options)
    assert ours == theirs
    assert ours.endswith(content.strip() if is_trimmed else content)


def test_a_template_that_hides_the_last_message_can_not_continue_it(own: Path) -> None:
    tokenizer = with_template(own, "{{ messages[0].content }}")
    with pytest.raises(RequestError, match="does not show the last message") as caught:
        tokenizer.apply_chat_template(CONVERSATION, options=PromptOptions(continue_final_message=True))
    assert caught.value.param == "continue_final_message"


def test_variables_of_a_template(own: Path) -> None:
    source = (
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
        "{{ documents | tojson }}{{ eos_token }}"
    )
    tokenizer = with_template(own, source)
    assert tokenizer.apply_chat_template(CONVERSATION) == "null<|im_end|>"
    for variables, expected in (
        ({"enable_thinking": False}, "<think></think>null<|im_end|>"),
        ({"enable_thinking": True, "documents": [{"text": "a"}]}, '[{"text": "a"}]<|im_end|>'),
        ({"eos_token": "x"}, "nullx"),
        ({"nothing_reads_this": 1}, "null<|im_end|>"),
    ):
        options = PromptOptions(variables=variables)
        assert tokenizer.apply_chat_template(CONVERSATION, options=options) == expected


def test_tools_as_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    tools = [{"type": "function", "function": {"name": "run", "parameters": {"größe": "<int>"}}}]
    call = {"type": "function", "id": "1", "function": {"name": "run", "arguments": {"sql": "<ü>"}}}
    messages = [*CONVERSATION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    theirs = reference.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    call["function"] = {"name": "run", "arguments": json.dumps({"sql": "<ü>"})}  # in OpenAI's form
    assert tokenizer.apply_chat_template(messages, tools=tools) == theirs


def test_arguments_too_deep_to_read_are_text(tokenizer: Tokenizer) -> None:
    call = {"type": "function", "id": "1", "function": {"name": "run", "arguments": "[" * 100_000}}
    messages = [*CONVERSATION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert "[" * 100_000 in tokenizer.apply_chat_template(messages)


def test_text_parts_are_lines(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "Which"}, {"type": "text", "text": "items?"}]
    whole = tokenizer.apply_chat_template([{"role": "user", "content": "Which\nitems?"}])
    assert tokenizer.apply_chat_template([{"role": "user", "content": parts}]) == whole


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "must not be empty"),
        (["hello"], "must be an object, not 'hello'"),
        ([{"content": "hello"}], "needs a role"),
        ([{"role": "user", "content": 3}], "content must be"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "'text'"),
        ([{"role": "user", "content": ["text"]}], "'text'"),
        ([{"role": "wizard", "content": "hello"}], "unknown role wizard"),
        ([{"role": "user"}], "refuses"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "needs a function"),
    ],
)
def test_messages_that_are_refused(own: Path, messages: list[Any], message: str) -> None:
    source = (
        (own / "chat_template.jinja")
        .read_text()
        .replace("{{ message.content }}", "{{ '' + message.content }}")
    )
    tokenizer = with_template(own, source)
    with pytest.raises(RequestError, match=message) as caught:
        tokenizer.apply_chat_template(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ nothing.at.all }}", "{{ 1 + 'a' }}"],
)
def test_templates_run_in_a_sandbox(own: Path, source: str) -> None:
    with pytest.raises(RequestError, match="refuses") as caught:
        with_template(own, source).apply_chat_template(CONVERSATION)
    assert caught.value.param == "messages"


def test_template_environment(own: Path) -> None:
    source = (
        "{{ strftime_now('%Y') }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ m.role }}{% endfor %}{{ eos_token }}"
    )
    expected = f"{datetime.now().year}systemuser<|im_end|>"
    assert with_template(own, source).apply_chat_template(CONVERSATION) == expected


def test_template_in_tokenizer_config(own: Path) -> None:
    (own / "chat_template.jinja").unlink()
    file = own / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    assert not Tokenizer.load(own).has_chat_template
    with pytest.raises(RequestError, match="no chat template") as caught:
        Tokenizer.load(own).apply_chat_template(CONVERSATION)
    assert caught.value.param == "messages"
    file.write_text(json.dumps(settings | {"chat_template": "{{ messages | length }}"}))
    assert Tokenizer.load(own).apply_chat_template(CONVERSATION) == "4"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools }}"}]
    file.write_text(json.dumps(settings | {"chat_template": named}))
    assert Tokenizer.load(own).apply_chat_template(CONVERSATION) == "plain"
    assert Tokenizer.load(own).apply_chat_template(CONVERSATION, tools=[{}]) == "[{}]"
    named[1]["template"] = "with {{ message.tools }}"
    file.write_text(json.dumps(settings | {"chat_template": named}))
    with pytest.raises(RequestError, match="chat template 'tool_use' has no 'tools'") as caught:
        Tokenizer.load(own).apply_chat_template(CONVERSATION, tools=[{}])
    assert caught.value.param == "tools"
    for malformed in (3, [3], [{"name": "default"}]):
        file.write_text(json.dumps(settings | {"chat_template": malformed}))
        with pytest.raises(CheckpointError, match="chat_template"):
            Tokenizer.load(own)


def test_end_tokens_without_generation_config(own: Path) -> None:
    (own / "generation_config.json").unlink()
    assert Tokenizer.load(own).eos_ids == {2}
    (own / "config.json").write_text('{"eos_token_id": [1, 3]}')
    assert Tokenizer.load(own).eos_ids == {1, 2, 3}


def test_broken_files(own: Path) -> None:
    with pytest.raises(CheckpointError, match="chat template"):
        with_template(own, "{% if %}")
    (own / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(own)
    (own / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(own)


STRICT = """\
{% for m in messages %}
{% if m.role == 'system' and not loop.first %}{{ raise_exception('one system message only') }}{% endif %}
{% if not loop.first and m.role != 'system' and m.role == loop.previtem.role %}{{ raise_exception('roles must alternate') }}{% endif %}
{% for call in m.tool_calls or [] %}{% for name, value in call.function.arguments.items() %}
{{ call.function.name }}.{{ name }}={{ value }}
{% endfor %}{% endfor %}
{{ m.role }}: {{ m.content }}
{% endfor %}
"""


def said(role: str, content: str, *arguments: Any) -> dict[str, Any]:
    calls = [{"function": {"name": "f", "arguments": given}} for given in arguments]
    return {"role": role, "content": content, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([said("system", "a"), said("user", "b")], "system: a\nuser: b\n"),
        ([said("system", "a"), said("system", "b"), said("user", "c")], "system: a\n\nb\nuser: c\n"),
        ([said("user", "a"), said("system", "b"), said("user", "c")], "system: b\nuser: a\n\nc\n"),
        ([said("user", "a"), said("assistant", ""), said("assistant", "b")], "user: a\nassistant: b\n"),
        ([said("assistant", "", "")], "assistant: \n"),
        ([said("assistant", "", '{"a": "b\nc"}')], "f.a=b\nc\nassistant: \n"),
        ([said("assistant", "", r'{"path": "C:\path"}')], 'f.arguments={"path": "C:\\path"}\nassistant: \n'),
        ([said("assistant", "", "[1]")], "f.arguments=[1]\nassistant: \n"),
        ([said("assistant", "", '{"a": 1}', "5")], "f.a=1\nf.arguments=5\nassistant: \n"),
    ],
)
def test_a_strict_template_is_shown_the_plainest_form(own: Path, messages: list[Any], shown: str) -> None:
    assert with_template(own, STRICT).apply_chat_template(messages) == shown


def test_a_form_that_the_template_takes_is_left_alone(own: Path) -> None:
    messages = [said("system", "a"), said("user", "b"), said("user", "c"), said("system", "d")]
    lax = with_template(own, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert lax.apply_chat_template(messages) == "system: a\nuser: b\nuser: c\nsystem: d\n"


def test_a_refusal_speaks_of_the_messages_as_sent(own: Path) -> None:
    messages = [said("user", "a"), said("user", "b"), said("wizard", "c")]
    source = STRICT + "{{ raise_exception('never, after ' ~ messages | length) }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        with_template(own, source).apply_chat_template(messages)
    with pytest.raises(RequestError, match="never, after 1"):
        with_template(own, source).apply_chat_template(messages[:1])


@pytest.mark.parametrize(
    "source", ["{{ 1 // 0 }}", "{{ [][5] + 1 }}", "{{ {}['a'] + 1 }}", "{{ 'a' | int + 'b' }}"]
)
def test_a_template_that_fails_on_its_own_refuses(own: Path, source: str) -> None:
    with pytest.raises(RequestError, match="refuses"):
        with_template(own, source).apply_chat_template(CONVERSATION)


THINKING = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "prompt", "think_tags"),
    [
        ("{{ messages[-1].content }}", "<think>", "unknown"),
        (THINKING, "", "known"),
        (THINKING, "<think>", "open"),
        (THINKING, "<think>\n", "open"),
        (THINKING, "<think>\n\n</think>\n\n", "known"),
        (THINKING, "<think> is a tag. ", "known"),
    ],
)
def test_what_think_tags_are(own: Path, template: str, prompt: str, think_tags: str) -> None:
    tokenizer = with_template(own, template)
    assert tokenizer.think_tags(tokenizer.encode(f"Hello {prompt}")) == think_tags


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("decoder", [None, decoders.Sequence([decoders.ByteLevel()])])
def test_tags_that_are_tokens_are_text(own: Path, is_special: bool, decoder: Any) -> None:
    raw = tokenizers.Tokenizer.from_file(str(own / "tokenizer.json"))
    raw.decoder = decoder or raw.decoder
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    raw.add_tokens([tokenizers.AddedToken(tag, special=is_special, normalized=False) for tag in tags])
    raw.save(str(own / "tokenizer.json"))
    tokenizer = with_template(own, "plain")
    text = "<think>a</think> <tool_call>{}</tool_call>"
    ids = tokenizer.encode(text)
    assert set(map(tokenizer.raw.token_to_id, tags)) <= set(ids.tolist())
    stream = tokenizer.detokenizer()
    assert "".join(stream.push([token]) for token in ids.tolist()) + stream.flush() == text
    assert tokenizer.think_tags(ids[:1]) == "open"
    assert tokenizer.decode([*ids, min(tokenizer.eos_ids)]) == text  # other special tokens stay no text


def test_bad_words_are_those_of_vllm(tokenizer: Tokenizer) -> None:
    """A word after a space counts if that makes another first token and as many tokens."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text).tolist())

    found = tokenizer.encode_words(["SELECT", "  name", "\n", "name"])
    for text in ("SELECT", "name", "\n"):
        assert ids(text) in found
        is_other = len(ids(f" {text}")) == len(ids(text)) and ids(f" {text}")[0] != ids(text)[0]
        assert (ids(f" {text}") in found) == is_other
    assert len(set(found)) == len(found)
    with pytest.raises(RequestError, match="bad_words: there are no tokens for ''"):
        tokenizer.encode_words([""])
