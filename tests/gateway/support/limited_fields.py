"""Bodies for which the sampler of vLLM's model runner V2 has no room, and the longest for which it has."""

from __future__ import annotations

from typing import Any

IDS = list(range(3000))
WORDS = [f"word{number}" for number in range(200)]
# fields, the one at fault, and its limit
TOO_LONG: list[tuple[dict[str, Any], str, int]] = [
    ({"allowed_token_ids": IDS}, "allowed_token_ids", 1024),
    ({"allowed_token_ids": IDS[:1025]}, "allowed_token_ids", 1024),
    ({"allowed_token_ids": [7] * 1025}, "allowed_token_ids", 1024),
    ({"stop_token_ids": IDS[:200], "min_tokens": 2}, "stop_token_ids", 128),
    ({"stop_token_ids": IDS[:129], "min_tokens": 1}, "stop_token_ids", 128),
    ({"stop_token_ids": IDS[:129], "min_tokens": "2"}, "stop_token_ids", 128),
    ({"stop_token_ids": IDS[:129], "min_tokens": True}, "stop_token_ids", 128),
    ({"stop_token_ids": [str(one) for one in IDS[:129]], "min_tokens": 2.0}, "stop_token_ids", 128),
    ({"stop_token_ids": IDS[:200], "min_tokens": 2, "n": 4, "stream": True}, "stop_token_ids", 128),
    ({"bad_words": WORDS}, "bad_words", 128),
    ({"logit_bias": {str(one): 1.0 for one in IDS[:1025]}}, "logit_bias", 1024),
    ({"sampling_params": {"allowed_token_ids": IDS}}, "allowed_token_ids", 1024),
    ({"sampling_params": {"stop_token_ids": IDS[:129], "min_tokens": 3}}, "stop_token_ids", 128),
]
# which a server without the plugin may have no room for: its end tokens and tokenizer aren't known
PERHAPS_TOO_LONG: list[tuple[dict[str, Any], str, int]] = [
    ({"stop_token_ids": IDS[:128], "min_tokens": 1}, "stop_token_ids", 120),
    ({"stop_token_ids": IDS[:121], "min_tokens": 1}, "stop_token_ids", 120),
    ({"bad_words": ["x" * 512]}, "bad_words", 1024),
    ({"bad_words": ["\N{SNOWMAN}" * 171]}, "bad_words", 1024),
    ({"bad_words": WORDS[:100]}, "bad_words", 1024),
]
SHORT_ENOUGH: list[dict[str, Any]] = [
    {"allowed_token_ids": IDS[:1024]},
    {"stop_token_ids": IDS[:120], "min_tokens": 1},
    {"stop_token_ids": [1, 2] * 100, "min_tokens": 1},
    {"stop_token_ids": IDS, "min_tokens": 0},
    {"stop_token_ids": IDS},
    {"stop_token_ids": IDS, "min_tokens": None},
    {"bad_words": WORDS[:64]},
    {"logit_bias": {str(one): 1.0 for one in IDS[:1024]}},
    {"min_tokens": 100},
    {"sampling_params": {"allowed_token_ids": IDS[:9]}},
    # of a wrong type: the engine says so
    {"allowed_token_ids": 7, "stop_token_ids": "x" * 4000, "min_tokens": [], "bad_words": None},
    {"stop_token_ids": [[1]], "min_tokens": "many", "logit_bias": [1], "sampling_params": 5},
]
