"""Speculative settings of vLLM 0.32 with which outputs are not the model's own, and harmless ones."""

from __future__ import annotations

from typing import Any

LOSSY: list[tuple[str, dict[str, Any]]] = [
    (
        "rejection_sample_method is 'synthetic'",
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5},
    ),
    (
        "rejection_sample_method is 'synthetic'",
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * 15},
    ),
    ("rejection_sample_method is 'block'", {"rejection_sample_method": "block"}),
    ("draft_sample_method is 'probabilistic'", {"draft_sample_method": "probabilistic"}),
    ("parallel_drafting is True", {"parallel_drafting": True}),
    ("suffix_decoding_max_tree_depth is 8", {"suffix_decoding_max_tree_depth": 8}),
    (
        r"num_speculative_tokens_per_batch_size is \[\(1, 8, 4\)\]",
        {"num_speculative_tokens_per_batch_size": [(1, 8, 4)]},
    ),
]
HARMLESS: list[dict[str, Any]] = [
    {},
    {"rejection_sample_method": "standard", "draft_sample_method": "greedy"},
    {"num_speculative_tokens": 7},
    {"enforce_eager": True, "max_model_len": 64, "disable_padded_drafter_batch": True},
]
