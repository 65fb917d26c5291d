"""Arguments of a vLLM server that change its speculative settings, or don't."""

from __future__ import annotations

import json
from pathlib import Path

SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3}
# by every door of vLLM's parser: in full, underscores, short, abbreviated, one field, with and without "="
CHANGED: list[tuple[str, ...]] = [
    ("--speculative-config", json.dumps(SYNTHETIC)),
    (f"--speculative_config={json.dumps(SYNTHETIC)}",),
    ("-sc", json.dumps(SYNTHETIC)),
    (f"-sc={json.dumps(SYNTHETIC)}",),
    ("--speculative-config.rejection_sample_method", "synthetic"),
    ("--speculative_config.rejection_sample_method=synthetic",),
    ("--speculative-config.rejection-sample-method", "synthetic"),
    ("-sc.rejection_sample_method", "synthetic"),
    ("-sc.rejection_sample_method=synthetic",),
    ("-sc.method", "ngram", "-sc.rejection_sample_method", "synthetic", "-sc.num_speculative_tokens", "4"),
    ("-sc.synthetic_acceptance_rates+", "0.9,0.5"),
    ("-sc.draft_load_config.load_format", "dummy"),
    ("--speculative-conf", json.dumps(SYNTHETIC)),
    ("--speculative-c.rejection_sample_method", "synthetic"),
    ("--speculative", json.dumps(SYNTHETIC)),
    ("-s", json.dumps(SYNTHETIC)),
    ("-s.rejection_sample_method", "synthetic"),
    ("--spec-method", "ngram"),
    ("--spec_method=ngram",),
    ("--spec-model", "other"),
    ("--spec-mod", "other"),
    ("--spec-tokens", "3"),
    ("--spec_tokens=3",),
    ("--max-num-seqs", "4", "--dtype", "float32", "-sc.method", "suffix"),
]
# of a file that --config names
CHANGED_BY_FILE = [
    f"speculative-config: {json.dumps(SYNTHETIC)}",
    "speculative_config:\n  rejection_sample_method: synthetic",
    "speculative-config.rejection_sample_method: synthetic",
    "max-num-seqs: 4\nsc.method: ngram\n-sc.method: ngram",
    "spec-tokens: 3",
    "spec_model: other",
    "spec-tokens: 3\nspec-tokens: 3",
    "speculative-c.method: ngram",
]
UNCHANGED: list[tuple[str, ...]] = [
    (),
    ("--max-num-seqs", "4", "--seed", "7"),
    ("--scheduling-policy", "priority"),
    ("--served-model-name", "-sc"[1:]),
    ("--compilation-config.mode", "0"),
    ("-cc.mode", "0"),
    ("--skip-tokenizer-init",),
    ("--model-impl", "auto"),
    ("--hf-overrides.architectures+", "LlamaForCausalLM"),
]
UNCHANGED_BY_FILE = [
    "max-num-seqs: 4",
    "model: other\nhost: 0.0.0.0\nport: 9000",  # those of the command line win
    "enforce-eager: true\ncompilation-config:\n  mode: 0",
]


def by_file(text: str, folder: Path) -> tuple[str, ...]:
    """Return the arguments that have vLLM read a file with this text."""
    path = folder / "vllm.yaml"
    path.write_text(text, encoding="utf-8")
    return "--config", str(path)
