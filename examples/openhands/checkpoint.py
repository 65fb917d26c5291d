"""A model for timing only: a small shape, filled with random weights, and its own tokenizer.

The bundled model's tokenizer is made for SQL: it needs three times as many tokens for an agent's prompts as
that of a usual model. So this module trains a vocabulary on the record's texts, with about four characters
per token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|end|>"
VOCAB_SIZE = 4096
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def write_checkpoint(folder: Path, record: Path) -> None:
    """Write shape and tokenizer, for ``agentspec serve --engine replay --trace RECORD --model FOLDER``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(END, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(record), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({**SHAPE, "eos_token_id": tokenizer.token_to_id(END)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


def _texts(record: Path) -> Iterable[str]:
    """Yield every distinct message once."""
    seen = set()
    for line in record.read_text(encoding="utf-8").splitlines():
        call = json.loads(line)
        for message in (*call["messages"], call["response"]):
            text = json.dumps(message, ensure_ascii=False).replace("\\n", "\n").replace('\\"', '"')
            if text not in seen:
                seen.add(text)
                yield text
