"""What the source files can't tell: which of vLLM's classes our untyped parameters are.

Parameters of methods that override vLLM's need no entry. :mod:`tests.vllm_sources.support.uses` reports every
untyped value whose attributes are read and that is not here.
"""

from __future__ import annotations

from agentspec.gateway.call import Endpoint
from agentspec.gateway.upstreams import sampler_limits
from agentspec.vllm_plugin.versions import FIRST_WITH_MESSAGE_TAGS, FIRST_WITH_REQUEST_METRICS

FIRST_WITH_RUNNER_V2 = (0, 32)

# oldest, newest, and those between them in which names of ours changed
CHECKED = ("0.26.0", "0.29.0", "0.32.0", "0.33.0")

NOT_VLLM = None

# class of the parameters (or of the elements of containers) that are annotated with Any, by name
PARAMETERS: dict[str, str | None] = {
    "vllm_config": "vllm.config.VllmConfig",
    "model_config": "vllm.config.ModelConfig",
    "scheduler_output": "vllm.v1.core.sched.output.SchedulerOutput",
    "new_requests": "vllm.v1.core.sched.output.NewRequestData",
    "new": "vllm.v1.core.sched.output.NewRequestData",
    "params": "vllm.sampling_params.SamplingParams",
    "runner": "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "engine": "vllm.v1.engine.async_llm.AsyncLLM",
    "batch": "vllm.v1.worker.gpu.input_batch.InputBatch",  # of model runner V2
    "req_states": "vllm.v1.worker.gpu.states.RequestState",
    "app": NOT_VLLM,  # starlette's
    "arguments": NOT_VLLM,  # JSON
    "given": NOT_VLLM,  # JSON
    "answer": NOT_VLLM,  # JSON
    "vocabulary": NOT_VLLM,  # xgrammar's
    "driver": NOT_VLLM,  # CUDA's
    "cached": "vllm.v1.core.sched.output.CachedRequestData",
    "detokenizer": "vllm.v1.engine.detokenizer.BaseIncrementalDetokenizer",
    "stream": NOT_VLLM,  # torch's
    "side": NOT_VLLM,  # the same
    "request": "vllm.v1.request.Request",
    "requests": "vllm.v1.request.Request",
    "masks": "vllm.v1.core.sched.output.GrammarOutput",
    "grammar": "vllm.v1.structured_output.backend_guidance.GuidanceGrammar",
    "masked": "vllm.v1.structured_output.backend_xgrammar.XgrammarGrammar",
}

# class of the attributes of vLLM's objects whose annotation is missing or wrong for us
RUNNERS = "vllm.v1.worker.gpu_model_runner.GPUModelRunner | vllm.v1.worker.gpu.model_runner.GPUModelRunner"
ATTRIBUTES: dict[str, str | None] = {
    "Worker.model_runner": RUNNERS,
    "CPUWorker.model_runner": RUNNERS,
    "Request.structured_output_request": "vllm.v1.structured_output.request.StructuredOutputRequest",
    "AsyncLLM.engine_core": "vllm.v1.engine.core_client.AsyncMPClient",
    "GPUModelRunner.query_start_loc": "vllm.v1.utils.CpuGpuBuffer",
    "GPUModelRunner.drafter": NOT_VLLM,  # ours, with model runner V1
    "GPUModelRunner.speculator": NOT_VLLM,  # ours, with V2
}

# class of the results of vLLM's functions that vLLM does not annotate
RESULTS: dict[str, str | None] = {
    "vllm.tokenizers.registry.cached_tokenizer_from_config": "vllm.tokenizers.TokenizerLike",
}

# files of ours that only later versions of vLLM load, with the first of these
FIRST_VERSIONS = {
    f"agentspec/vllm_plugin/{name}.py": FIRST_WITH_RUNNER_V2
    for name in (
        *("hybrid", "planner", "ragged_graphs", "ragged_scheduler", "sampler_limits", "speculator"),
        "streams",
    )
}

# names that only later versions have, and that our code does without in earlier ones
FIRST_WITH_NAME = {
    "vllm.triton_utils.dispatcher.register_kernels": (0, 31),
    "vllm.v1.engine.core_client.AsyncMPClient.call_utility_all_async": (0, 32),
    "vllm.config.speculative.SpeculativeConfig.enable_adaptive_verification": (0, 29),
}

# flags that only later versions have
FIRST_WITH_FLAG = {"--per-request-spec-decode-metrics": FIRST_WITH_REQUEST_METRICS}

# paths whose bodies take tags only in later versions
FIRST_WITH_TAGS = {Endpoint.MESSAGES: FIRST_WITH_MESSAGE_TAGS}

# classes of ours that vLLM uses: the module that does, its name for the object, and our speculative method
CONSUMERS = (
    ("ForestProposer", "vllm.v1.worker.gpu_model_runner", "self.drafter", "custom_class"),
    ("ForestProposer", "vllm.v1.worker.cpu_model_runner", "self.drafter", "custom_class"),
    ("ForestSpeculator", "vllm.v1.worker.gpu.model_runner", "self.speculator", "ngram_gpu"),
)

# what they read of ours in no configuration that vLLM accepts, with the reason
NEVER_READ = {
    "prepare_watermarking": "vLLM refuses watermarking with our methods",
}

# speculative settings that a server with the plugin may only have at their defaults
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

# limits of vLLM's model runner V2, and ours; bad words' have variables since 0.29
LIMITS = {
    "vllm.v1.worker.gpu.sample.logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS": sampler_limits.MOST_ALLOWED_TOKEN_IDS,
    "vllm.v1.worker.gpu.sample.logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS": sampler_limits.MOST_LOGIT_BIASES,
    "vllm.v1.worker.gpu.sample.logit_bias.MAX_NUM_STOP_TOKEN_IDS": sampler_limits.MOST_STOP_TOKEN_IDS,
    "vllm.envs.VLLM_MAX_NUM_BAD_WORDS": sampler_limits.MOST_BAD_WORDS,
    "vllm.envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": sampler_limits.MOST_BAD_WORD_TOKENS,
}
FIRST_WITH_LIMIT = {name: (0, 29) for name in LIMITS if name.startswith("vllm.envs.")}
# number of errors with which files of its sampler end the engine for one request
SAMPLER = "vllm/v1/worker/gpu/sample"
KNOWN_ERRORS = {"logit_bias.py": 3, "bad_words.py": 2, "logprob.py": 1}  # the last: vLLM checks it before

# calls that vLLM makes in this order, on which a file of ours relies
ORDERS = (
    (
        "agentspec/vllm_plugin/speculator.py",
        "vllm.v1.worker.gpu.model_runner",
        "AsyncOutput",
        "self.speculator.propose",
    ),
)
