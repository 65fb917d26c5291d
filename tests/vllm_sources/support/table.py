"""What the source files can't tell: what of vLLM was judged, and how."""

from __future__ import annotations

from agentspec.gateway.upstreams import sampler_limits

CHECKED = ("0.32.0", "0.33.0")  # all supported minors, the newest last

# parts of mypy's messages about places that are right for reasons that mypy can't know
KNOWN_TO_MYPY: tuple[str, ...] = (
    'Incompatible import of "PlatformWorker"',  # one of two classes, by the platform
    '"CPUModelRunner" has no attribute "speculator"',  # V2's has
    '"GPUModelRunner" has no attribute "speculator"',
    '"DraftModelSpeculator" has no attribute "planner"',  # made there
    "Cannot assign to a type",  # a class that is replaced
    'Function gets multiple values for keyword argument "dummy_run"',  # arguments are passed on
    'Function gets multiple values for keyword argument "num_speculative_tokens"',
    'Item "Exception" of "StructuredOutputGrammar | Exception"',  # of a grammar that could not be made
)

# modules of vLLM, and the names in them that the plug-in replaces
REPLACED = {"vllm/v1/worker/gpu/model_runner.py": {"init_speculator", "AsyncOutput"}}

# calls that vLLM makes in this order, on which the plug-in relies
ORDERS = (("vllm/v1/worker/gpu/model_runner.py", "AsyncOutput", "self.speculator.propose"),)

# attributes that vLLM reads of our objects: those that ours have, then those of other methods than ours
OF_OTHER_PROPOSERS = (
    *(
        "dummy_run",
        "eagle",
        "eagle3_use_aux_hidden_state",
        "initialize_attn_backend",
        "initialize_cudagraph_keys",
        "kv_cache_gid",
        "model",
    ),
    *("prepare_inputs", "prepare_inputs_padded", "prepare_next_token_ids_cpu", "set_eplb_state"),
    *("prepare_next_token_ids_padded", "set_per_group_attn_metadata", "set_per_group_block_table"),
    *("supports_mm_inputs", "take_last_draft_probs", "update_token_ids_ngram"),
    "validate_same_kv_cache_group",
)
OF_OTHER_SPECULATORS = (
    *("dcp_size", "draft_attn_layer_names", "load_model", "num_extra_query_per_req", "num_query_per_req"),
    *("observe_verification", "pcp_manager", "set_attn"),
    "prepare_watermarking",  # vLLM refuses watermarking with our methods
)
READS = (
    (
        "vllm/v1/worker/gpu_model_runner.py",
        "self.drafter",
        ("propose", "load_model", *OF_OTHER_PROPOSERS),
    ),
    ("vllm/v1/worker/cpu_model_runner.py", "self.drafter", ("load_model",)),
    (
        "vllm/v1/worker/gpu/model_runner.py",
        "self.speculator",
        (
            *("propose", "capture", "init_cudagraph_manager", "supports_mm_inputs", "draft_logits"),
            *("draft_token_confidence_probs", *OF_OTHER_SPECULATORS),
        ),
    ),
)

# speculative settings that a server with the plug-in may only have at their defaults
LEFT_ALONE = frozenset(
    (
        *("rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length"),  # lossy
        *("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),  # lossy
        *("draft_sample_method", "parallel_drafting", "num_speculative_tokens_per_batch_size"),
        *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
        *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"),
        *("dspark_draft_topk", "xpress_topc"),
    )
)

# files and constants of vLLM with our values
NUMBERS = (
    ("vllm/v1/sample/rejection_sampler.py", "MAX_SPEC_LEN", 128),
    *(
        ("vllm/v1/worker/gpu/sample/logit_bias.py", name, ours)
        for name, ours in (
            ("MAX_NUM_ALLOWED_TOKEN_IDS", sampler_limits.MOST_ALLOWED_TOKEN_IDS),
            ("MAX_NUM_LOGIT_BIAS_TOKENS", sampler_limits.MOST_LOGIT_BIASES),
            ("MAX_NUM_STOP_TOKEN_IDS", sampler_limits.MOST_STOP_TOKEN_IDS),
        )
    ),
    ("vllm/envs.py", "VLLM_MAX_NUM_BAD_WORDS", sampler_limits.MOST_BAD_WORDS),
    ("vllm/envs.py", "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", sampler_limits.MOST_BAD_WORD_TOKENS),
)
# number of errors with which files of V2's sampler end the engine for one request
SAMPLER = "vllm/v1/worker/gpu/sample"
KNOWN_ERRORS = {"logit_bias.py": 3, "bad_words.py": 2, "logprob.py": 1}  # the last: vLLM checks it before
