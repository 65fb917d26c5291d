"""Names of the fields that other servers' requests have, as published. ``tests/real_vllm`` compares them.

The lists of OpenAI and Anthropic are those of their Python packages, vLLM's those of its protocol classes
and of earlier versions, and llama.cpp's those of ``server-schema.cpp`` and of the server's README.
"""

from __future__ import annotations

OPENAI_CHAT = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
    safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options
"""
OPENAI_COMPLETIONS = """
    best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed
    stop stream stream_options suffix temperature top_p user
"""
OPENAI_RESPONSES = """
    access_programs background background_options context_management conversation image include input
    instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
    previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools
    top_logprobs top_p truncation user
"""  # openai 3.57.0

_VLLM_SHARED = """
    cache_salt ec_transfer_params frequency_penalty ignore_eos include_stop_str_in_output
    kv_transfer_params logit_bias min_p mm_payload model presence_penalty priority repetition_penalty
    request_id return_mm_kwargs seed session_id skip_special_tokens stop stop_token_ids stream
    structured_outputs temperature top_k top_p user vllm_xargs watermarking
"""
_VLLM_CHOICES = """
    add_special_tokens allowed_token_ids bad_words echo length_penalty logprob_token_ids logprobs
    max_tokens min_tokens n prompt_logprobs repetition_detection response_format return_token_ids
    return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
    spaces_between_special_tokens stream_interval stream_options thinking_token_budget
    truncate_prompt_tokens truncation_side use_beam_search
"""
VLLM_CHAT = f"""
    {_VLLM_SHARED} {_VLLM_CHOICES}
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents
    include_reasoning max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls
    reasoning_effort
    return_prompt_text tool_choice tools top_logprobs
"""
VLLM_COMPLETIONS = f"{_VLLM_SHARED} {_VLLM_CHOICES} prompt prompt_embeds suffix"
VLLM_RESPONSES = f"""
    {_VLLM_SHARED}
    background chat_template_kwargs enable_response_messages include include_reasoning input instructions
    max_output_tokens max_tool_calls media_io_kwargs metadata mm_processor_kwargs parallel_tool_calls
    previous_input_messages previous_response_id prompt prompt_cache_key reasoning service_tier store text
    tool_choice tools top_logprobs truncation
"""
VLLM_TOKENIZE = """
    add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message
    media_io_kwargs messages mm_processor_kwargs model prompt return_token_strs tools
"""
VLLM_DETOKENIZE = "model tokens"  # vLLM 0.32.0
VLLM_EARLIER = """
    best_of guided_choice guided_decoding_backend guided_grammar guided_json guided_regex
    guided_whitespace_pattern structural_tag
"""

LLAMA_CPP = """
    adaptive_decay adaptive_target backend_sampling cache_prompt chat_format chat_parser
    continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt
    grammar grammar_lazy grammar_triggers grammar_type id_slot ignore_eos image_data input_extra
    input_prefix input_suffix json_schema logit_bias logprobs lora max_completion_tokens max_tokens
    min_keep min_p mirostat mirostat_eta mirostat_tau n n_cache_reuse n_cmpl n_discard n_indent n_keep
    n_predict n_probs parse_tool_calls post_sampling_probs presence_penalty preserved_tokens prompt
    reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag
    reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n repeat_penalty
    response_fields return_progress return_tokens samplers seed sse_ping_interval stop stream
    stream_options t_max_predict_ms temperature thinking_forced_open timings_per_token top_k top_n_sigma
    top_p typical_p verbose xtc_probability xtc_threshold
"""  # of November 2026

ANTHROPIC = """
    betas billing_policy cache_control compaction container context_management diagnostics
    fallback_credit_token fallbacks inference_geo max_tokens mcp_servers messages metadata model
    output_config service_tier speed stop_sequences stream system temperature thinking thread tool_choice
    tools top_k top_p user_profile_id workspace_id
"""  # anthropic 2.14.0, with its beta fields

GENERATING = frozenset(
    " ".join(
        (
            OPENAI_CHAT,
            OPENAI_COMPLETIONS,
            OPENAI_RESPONSES,
            VLLM_CHAT,
            VLLM_COMPLETIONS,
            VLLM_RESPONSES,
            VLLM_EARLIER,
            LLAMA_CPP,
            ANTHROPIC,
        )
    ).split()
)

MEMBERS = {
    "stream_options": "continuous_usage_stats include_obfuscation include_usage",
    "structured_outputs": (
        "choice disable_additional_properties disable_any_whitespace grammar json json_object regex"
        " structural_tag whitespace_pattern"
    ),
    "reasoning": "context effort generate_summary mode summary",
    "text": "format verbosity",
}
