"""Small random checkpoints of each family, as written by transformers, with a byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from agentspec.engine.text.chat_template import TOOLS_TEMPLATE
from agentspec.models import bundled_model_dir

SPECIAL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|end|>")
VOCAB_SIZE = 384
CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role not in ["system", "user", "assistant", "tool"] %}
{{- raise_exception("unknown role " + message.role) }}
{%- endif %}
{{- "<|im_start|>" + message.role + "\\n" }}
{%- if message.role == "assistant" %}{% generation %}{{ message.content or "" }}{% endgeneration %}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{%- else %}{{ message.content }}{% endif %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""

_TEXT = (
    "SELECT name, price FROM items WHERE price < 10 ORDER BY name; ",
    '{"entities": ["items", "orders"], "filters": [{"column": "price", "value": 10}]} ',
    "The quick brown fox jumps over the lazy dog. Größe, naïve, 東京, 🙂. ",
)
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "initializer_range": 0.15,  # large enough for distinct logits
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _config(kind: type[transformers.PretrainedConfig], **fields: Any) -> Callable[[], Any]:
    return lambda: kind(**{**_SIZES, **fields})


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _config(transformers.LlamaConfig),
    "llama_tied": _config(transformers.LlamaConfig, tie_word_embeddings=True, num_key_value_heads=4),
    "llama_biased": _config(transformers.LlamaConfig, attention_bias=True, mlp_bias=True, head_dim=32),
    "llama_rope3": _config(transformers.LlamaConfig, rope_parameters=_LLAMA3_ROPE),
    "llama_linear": _config(
        transformers.LlamaConfig,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "mistral": _config(transformers.MistralConfig, sliding_window=None),
    "mistral_window": _config(transformers.MistralConfig, sliding_window=12),
    "qwen2": _config(transformers.Qwen2Config),
    "qwen2_window": _config(
        transformers.Qwen2Config, use_sliding_window=True, sliding_window=10, max_window_layers=1
    ),
    "qwen3": _config(transformers.Qwen3Config, head_dim=24),
}


def make_tokenizer(directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja of a small byte-level BPE."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 1,  # as with real models, the logits are wider than the vocabulary
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_TEXT * 4, trainer)
    raw.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": {"__type": "AddedToken", "content": SPECIAL_TOKENS[2], "special": True},
        "pad_token": SPECIAL_TOKENS[3],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def make_checkpoint(
    directory: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    **fields: Any,
) -> Path:
    """Write a random checkpoint of one of :data:`FAMILIES`. ``fields`` override its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    config = FAMILIES[family]()
    for name, value in fields.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # norms and biases are initially trivial; randomize them
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.normal_(float("norm" in name), 0.2)
    model.generation_config.eos_token_id = [2, 3]
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    make_tokenizer(directory)
    return directory


def load_reference(directory: Path) -> Any:
    """Load the same checkpoint in transformers, in float32 and with eager attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def make_tool_checkpoint(directory: Path, tags: Literal["text", "tokens", "special"] = "text") -> Path:
    """Write the bundled model with a chat template that lists tools. Its weights are linked.

    ``tags``: what ``<tool_call>`` and ``</tool_call>`` are in the vocabulary: no token of their own, added
    tokens, or added tokens that are special.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in bundled_model_dir().iterdir():
        (directory / file.name).symlink_to(file)
    (directory / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    if tags != "text":
        raw = json.loads((directory / "tokenizer.json").read_text())
        _add_tags(raw, is_special=tags == "special")
        (directory / "tokenizer.json").unlink()
        (directory / "tokenizer.json").write_text(json.dumps(raw))
    return directory


def _add_tags(raw: dict[str, Any], *, is_special: bool) -> None:
    """Put the tags in the place of the last two tokens, which no other token is made of."""
    vocabulary = raw["model"]["vocab"]
    for tag in ("<tool_call>", "</tool_call>"):
        token, token_id = max(vocabulary.items(), key=lambda item: item[1] * (item[0][:1] != "<"))
        raw["model"]["merges"].remove(next(pair for pair in raw["model"]["merges"] if "".join(pair) == token))
        vocabulary[tag] = vocabulary.pop(token)
        raw["added_tokens"].append(
            {**raw["added_tokens"][-1], "id": token_id, "content": tag, "special": is_special}
        )
