"""The model's tokenizer, byte-level BPE trained on the samples, and the chat template.

Tokens of capitalized words and digits exclude the preceding space, so a value ("Lyon", 2019) has the same
tokens in a question, in JSON and in SQL. This helps with copying, the hardest task for a small model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.agentic_sql.prompts import Messages
from examples.agentic_sql.samples import Sample

PAD, END, SYSTEM, USER, ASSISTANT = SPECIAL = [
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_PIECES = Regex(r" ?[a-z_]+|[A-Z][a-z]+| ?[A-Z]{2,}|[A-Z]|[0-9]| ?[^\sA-Za-z0-9_]+|\s")


def render(messages: Messages) -> str:
    """Render the messages like the chat template, for the trainer; a test compares both."""
    return "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages) + ASSISTANT


def train(samples: Iterable[Sample], size: int) -> Tokenizer:
    """Train a tokenizer of ``size`` tokens on the samples' text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for s in samples for text in (*(m["content"] for m in s.messages), s.target))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path, max_len: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": max_len,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
