"""The fields of request bodies: which the embedded engine honours, which change nothing, which it refuses.

One table per endpoint covers every field of OpenAI, vLLM, llama.cpp's server and Anthropic, so that no known
field is without effect in silence. The tests compare the tables with the published schemas, and
``docs/endpoints.md`` is made from them. A name that is in none of these schemas is ignored, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentspec.errors import RequestError


class Use(StrEnum):
    """What the engine does with a field."""

    HONOURED = "honoured"
    HARMLESS = "harmless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What happens to one field.

    Attributes:
        note: the effect, or the reason why the field changes nothing, or the way out of a refusal.
        off: values of a refused field that ask for nothing, and are accepted. ``null`` always is.
    """

    use: Use
    note: str = ""
    off: tuple[object, ...] = ()


Table = Mapping[str, FieldRule]
EMPTY: tuple[object, ...] = (False, "", [], {})


def refuse_unsupported(table: Table, body: Mapping[str, Any]) -> None:
    """Raise RequestError if ``body`` has a refused field with a value that asks for a feature."""
    for name, value in _given(body, ""):
        rule = table.get(name)
        if rule is None or rule.use is not Use.REFUSED or value is None:
            continue
        if not any(_equals(value, one) for one in rule.off):
            raise RequestError(
                f"{name} is not supported: {rule.note}", param=name, code="unsupported_parameter"
            )


def _given(body: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Return the fields of the body and of its members that have rules of their own, by dotted name."""
    found = []
    for name, value in body.items():
        found.append((prefix + name, value))
        if not prefix and name in NESTED and isinstance(value, dict):
            found += _given(value, f"{name}.")
    return found


def _equals(value: object, other: object) -> bool:
    """Compare JSON values: ``false`` is not 0, and 1 is 1.0."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _honoured(note: str, *names: str) -> Table:
    return _table(FieldRule(Use.HONOURED, note), names)


def _harmless(note: str, *names: str) -> Table:
    return _table(FieldRule(Use.HARMLESS, note), names)


def _refused(note: str, *names: str, off: tuple[object, ...] = EMPTY) -> Table:
    return _table(FieldRule(Use.REFUSED, note, off), names)


def _table(rule: FieldRule, names: Iterable[str]) -> Table:
    """Return one rule for the names in texts that separate them by spaces."""
    return dict.fromkeys(" ".join(names).split(), rule)


NESTED = frozenset(("stream_options", "structured_outputs", "reasoning", "text"))

_NO_MEDIA = "the engine reads and writes text only"
_NOTHING_KEPT = "nothing is kept here between two calls: send the whole input"
_OTHER_SAMPLER = "the engine has no such sampler: use temperature, top_p, top_k or min_p"
_NO_TEMPLATE = "the completions API has no chat template: use /v1/chat/completions"
_VARIABLES = ("documents", "reasoning_effort")
_SUMMARIES = ("summary", "generate_summary", "context", "mode")
_OWN_REASONING = "the model's reasoning is in the answer: send chat_template_kwargs to switch it off"

# fields that every generating endpoint treats alike, and the names under which others know them
_EVERYWHERE: Table = {
    **_honoured("compared with the name of the served model", "model"),
    **_honoured("server-sent events, one per decode step", "stream"),
    **_honoured("equal seeds give equal outputs", "seed"),
    **_honoured("up to 16 strings, which the text never shows", "stop"),
    **_honoured("", "temperature top_p presence_penalty frequency_penalty"),
    **_honoured("vLLM's; -1 and 0 are off", "top_k"),
    **_honoured("vLLM's", "min_p ignore_eos allowed_token_ids bad_words"),
    **_honoured(
        "vLLM's; above 1 makes tokens of the prompt and the output less likely", "repetition_penalty"
    ),
    **_honoured("vLLM's; a finished grammar ends the output earlier", "min_tokens"),
    **_honoured("vLLM's; these tokens end the output and are not shown", "stop_token_ids"),
    **_honoured("up to 1024 token ids, each with a bias from -100 to 100", "logit_bias"),
    **_honoured(
        "vLLM's; exactly one of its members",
        "structured_outputs",
        *(f"structured_outputs.{name}" for name in ("json", "regex", "choice", "grammar", "json_object")),
    ),
    **_honoured(
        "older names of vLLM for members of structured_outputs",
        "guided_json guided_regex guided_choice guided_grammar",
    ),
    **_honoured("llama.cpp's; GBNF or Lark", "grammar"),
    **_honoured("llama.cpp's; as response_format", "json_schema"),
    **_honoured("hints for stage and session", "vllm_xargs nvext agent_hint metadata"),
    **_honoured("the session, unless something else names it", "session_id prompt_cache_key"),
    **_refused(
        "white space between JSON tokens is bounded already",
        "structured_outputs.whitespace_pattern structured_outputs.disable_any_whitespace",
        "guided_whitespace_pattern",
    ),
    **_refused(
        'write "additionalProperties": false into the schema',
        "structured_outputs.disable_additional_properties",
    ),
    **_refused(
        "send one of its other forms: json, regex, choice or grammar",
        "structured_outputs.structural_tag structural_tag",
    ),
    **_harmless("there is one grammar library", "guided_decoding_backend"),
    **_harmless("names the end user; X-AgentSpec-Subject names whose data an answer holds", "user"),
    **_harmless("accounting of a provider", "safety_identifier service_tier user_profile_id"),
    **_harmless("the engine's answers have ids of their own", "request_id"),
    **_harmless("where requests and caches live changes no token", "cache_salt inference_geo"),
    **_harmless(
        "caches change no token",
        "prompt_cache_options prompt_cache_retention cache_control cache_prompt n_cache_reuse",
        "id_slot",
    ),
    **_harmless("requests are served in the order of their arrival", "priority"),
    **_harmless("one event per decode step, without delay", "stream_interval sse_ping_interval"),
    **_harmless("padding against eavesdroppers; nothing is added", "stream_options.include_obfuscation"),
    **_harmless("has an effect only with images or sound", "mm_processor_kwargs media_io_kwargs"),
    **_harmless("parts of answers that the engine does not give", "mm_payload return_mm_kwargs"),
    **_harmless("has an effect only in vLLM's render endpoints", "return_token_offsets"),
    **_harmless("has an effect only with beam search", "length_penalty"),
    **_harmless("has an effect only with truncate_prompt_tokens", "truncation_side"),
    **_harmless("has an effect only with skip_special_tokens: false", "spaces_between_special_tokens"),
    **_harmless("diagnostics, workspaces and beta switches of a provider", "diagnostics workspace_id betas"),
    **_harmless("nothing is stored", "store"),
    **_refused("ask for several samples by n", "use_beam_search"),
    **_refused("stop strings are never shown", "include_stop_str_in_output"),
    **_refused("special tokens are never shown", "skip_special_tokens", off=(True,)),
    **_refused("send a shorter prompt", "truncate_prompt_tokens", off=()),
    **_refused("call /tokenize for the tokens of a text", "return_token_ids return_tokens"),
    **_refused("log probabilities name tokens by their text", "return_tokens_as_token_ids"),
    **_refused("only output tokens have log probabilities", "prompt_logprobs", off=(False,)),
    **_refused("ask for the most likely tokens with top_logprobs", "logprob_token_ids", off=([],)),
    **_refused(
        "send stop or max_tokens to end an output", "repetition_detection t_max_predict_ms", off=({}, -1)
    ),
    **_refused("no KV cache is transferred here", "kv_transfer_params ec_transfer_params", off=({},)),
    **_refused("the engine reports no experts", "routed_experts_prompt_start", off=(0,)),
    **_refused("outputs are not marked", "watermarking"),
    **_refused("send text or token ids", "prompt_embeds", off=([], "")),
    **_refused("limit the output with max_tokens", "thinking_token_budget", off=(-1,)),
    **_refused(_OWN_REASONING, "include_reasoning", off=(True,)),
    **_refused("call a moderation service yourself", "moderation"),
    **_refused(_NO_MEDIA, "audio image image_data multimodal_data", off=EMPTY),
    **_refused(_NO_MEDIA, "modalities", off=(["text"], [])),
    **_refused("give the model a function that searches, in tools", "web_search_options"),
    **_refused(
        "usage is in the last chunk, by stream_options.include_usage", "stream_options.continuous_usage_stats"
    ),
    # llama.cpp's
    **_refused("its name here is max_tokens, in the responses API max_output_tokens", "n_predict", off=(-1,)),
    **_refused("its name here is n, in chat and completions", "n_cmpl", off=(1,)),
    **_refused("its name here is logprobs", "n_probs", off=(0,)),
    **_refused("its name here is repetition_penalty", "repeat_penalty", off=(1,)),
    **_harmless("has an effect only with repeat_penalty, which is refused", "repeat_last_n"),
    **_refused(_OTHER_SAMPLER, "typical_p", off=(1,)),
    **_refused(_OTHER_SAMPLER, "dynatemp_range dry_multiplier mirostat xtc_probability min_keep", off=(0,)),
    **_refused(_OTHER_SAMPLER, "top_n_sigma adaptive_target", off=(-1,)),
    **_refused(_OTHER_SAMPLER, "samplers"),
    **_harmless(
        "has an effect only with a sampler that is refused",
        "xtc_threshold dynatemp_exponent dry_base dry_allowed_length dry_penalty_last_n",
        "dry_sequence_breakers mirostat_tau mirostat_eta adaptive_decay",
    ),
    **_refused("log probabilities are the model's own", "post_sampling_probs"),
    **_harmless("sampling gives the same tokens on every device", "backend_sampling"),
    **_harmless("a prompt that exceeds the context is refused, never cut", "n_keep n_discard"),
    **_refused("format the text yourself", "n_indent", off=(0,)),
    **_refused("the engine has no adapters", "lora"),
    **_refused("the answer has OpenAI's form", "response_fields"),
    **_harmless(
        "figures for debugging are in the answer's metrics", "verbose timings_per_token return_progress"
    ),
    **_refused("a grammar holds from the first token on", "grammar_lazy grammar_triggers"),
    **_harmless("has an effect only with grammar_triggers", "preserved_tokens grammar_type"),
    **_refused(_OWN_REASONING, "reasoning_format", off=("none", "auto")),
    **_refused(_OWN_REASONING, "thinking_forced_open reasoning_control"),
    **_refused("limit the output with max_tokens", "reasoning_budget_tokens", off=(-1,)),
    **_harmless(
        "has an effect only with reasoning_budget_tokens",
        "reasoning_budget_start_tag reasoning_budget_end_tags reasoning_budget_end_tag",
        "reasoning_budget_message",
    ),
    **_refused("calls are read as the model writes them", "parse_tool_calls", off=(True,)),
    **_refused(
        "the model's own chat template is used", "chat_format chat_parser generation_prompt", off=(0, "")
    ),
    **_refused("put the text into the prompt", "input_prefix input_suffix input_extra"),
    # Anthropic's
    **_refused("its name here is stop", "stop_sequences"),
    **_refused("send a message with the role system", "system"),
    **_refused("send chat_template_kwargs or reasoning_effort", "thinking", off=({"type": "disabled"},)),
    **_refused("send response_format for a schema", "output_config output_format", off=({},)),
    **_refused("the engine runs no code and keeps no state", "container mcp_servers thread"),
    **_refused("send the context that the model is to read", "context_management compaction"),
    **_refused("there is one engine with one model", "fallbacks fallback_credit_token billing_policy"),
    **_refused("there is one engine with one model", "speed", off=("standard", "")),
}

_CHAT_INPUT: Table = {
    **_honoured("variables of the chat template, such as enable_thinking", "chat_template_kwargs"),
    **_refused("the model's own chat template is used: send chat_template_kwargs", "chat_template"),
    **_honoured("functions only", "tools"),
    **_honoured("auto, none, required, or a function by its name", "tool_choice"),
    **_honoured("false ends the output before a second call", "parallel_tool_calls"),
    **_harmless("built-in tools are refused, and only their calls count", "max_tool_calls"),
    **_harmless("a hint for models that were trained on it", "verbosity text.verbosity"),
    **_refused("send tools", "functions"),
    **_refused("send tool_choice", "function_call", off=("auto", "none")),
}
_TURNS: Table = {
    **_honoured("vLLM's; false leaves out the beginning of the assistant's turn", "add_generation_prompt"),
    **_honoured("vLLM's; the output continues the last message", "continue_final_message"),
}
_CHOICES: Table = {
    **_honoured("", "max_tokens n logprobs stream_options stream_options.include_usage"),
    **_honoured("text, json_object (with or without a schema) or json_schema", "response_format"),
    **_refused("in the responses API only; its name here is max_tokens", "max_output_tokens"),
    **_refused("in the responses API only; its name here is messages, or prompt for text", "input"),
    **_refused("in the responses API only; send it as the first message", "instructions"),
    **_refused("in the responses API only; its name here is response_format", "text.format"),
    **_harmless("its members have rules of their own", "text reasoning"),
    **_refused("in the responses API only; its name here is reasoning_effort", "reasoning.effort"),
    **_harmless("reasoning is not summarized", *(f"reasoning.{name}" for name in _SUMMARIES)),
    **_refused("in the responses API only; log probabilities are asked for by logprobs", "include"),
    **_refused(_NOTHING_KEPT, "previous_response_id conversation previous_input_messages"),
    **_refused("an answer is returned by its call, or as a stream", "background background_options"),
    **_refused("send a shorter prompt", "truncation", off=("disabled",)),
    **_refused("the answer has OpenAI's form", "enable_response_messages"),
    **_refused("the engine runs no programs", "access_programs"),
}

CHAT: Table = {
    **_EVERYWHERE,
    **_CHAT_INPUT,
    **_TURNS,
    **_CHOICES,
    **_honoured("text only; the last message may be continued", "messages"),
    **_honoured("takes precedence over max_tokens", "max_completion_tokens"),
    **_honoured("with logprobs: true", "top_logprobs"),
    **_honoured("vLLM's; false leaves the model's reasoning out", "include_reasoning"),
    **_refused("reasoning is given apart from the text", "reasoning_format", off=("auto", "deepseek")),
    **_honoured("the output that is expected, to draft from", "prediction"),
    **_honoured(
        "a variable of the chat template; without effect if the template does not read it", *_VARIABLES
    ),
    **_honoured("vLLM's; true adds special tokens to those of the chat template", "add_special_tokens"),
    **_refused("the answer holds the new text only", "echo"),
    **_refused("use /v1/completions for text", "prompt"),
    **_refused("use /v1/completions", "suffix best_of"),
    **_refused("send messages and read the answer", "return_prompt_text"),
}

COMPLETIONS: Table = {
    **_EVERYWHERE,
    **_CHOICES,
    **_honoured("text or token ids, one prompt or up to 128", "prompt"),
    **_honoured("equal to n", "best_of"),
    **_honoured("vLLM's; false adds no special tokens to a prompt of text", "add_special_tokens"),
    **_honoured("the output that is expected, to draft from", "prediction"),
    **_refused("the answer holds the new text only", "echo"),
    **_refused("the engine writes forwards only", "suffix"),
    **_refused("its name here is max_tokens", "max_completion_tokens"),
    **_refused("its name here is logprobs, a number", "top_logprobs", off=(0,)),
    **_refused(_NO_TEMPLATE, *_CHAT_INPUT, *_TURNS, *_VARIABLES, "messages return_prompt_text"),
    **_harmless("a hint for models that were trained on it", "verbosity text.verbosity"),
    **_harmless("without tools nothing is called", "parallel_tool_calls max_tool_calls"),
    **_refused(_NO_TEMPLATE, "tool_choice function_call", off=("auto", "none")),
    **_refused(_NO_TEMPLATE, "reasoning.effort"),
}

RESPONSES: Table = {
    **_EVERYWHERE,
    **_CHAT_INPUT,
    **_honoured("text, or messages, calls of functions and their outputs", "input"),
    **_honoured("", "instructions max_output_tokens"),
    **_honoured("with message.output_text.logprobs in include", "top_logprobs"),
    **_honoured("message.output_text.logprobs; other parts do not exist here", "include"),
    **_honoured("", "text text.format"),
    **_honoured("its effort is a variable of the chat template", "reasoning reasoning.effort"),
    **_honoured("the output that is expected, to draft from", "prediction"),
    **_harmless("reasoning is not summarized", *(f"reasoning.{name}" for name in _SUMMARIES)),
    **_harmless("usage is in the last event", "stream_options stream_options.include_usage"),
    **_harmless("input that exceeds the context is refused, never cut", "truncation"),
    **_refused(_NOTHING_KEPT, "previous_response_id conversation previous_input_messages"),
    **_refused("no prompts are stored here: send instructions and input", "prompt"),
    **_refused("a response is returned by its call here, or as a stream", "background background_options"),
    **_refused("the answer has OpenAI's form", "enable_response_messages"),
    **_refused("the engine runs no programs", "access_programs"),
    **_refused("in the responses API its name is input", "messages"),
    **_refused("in the responses API its name is max_output_tokens", "max_tokens max_completion_tokens"),
    **_refused("in the responses API its name is text.format", "response_format", off=({"type": "text"},)),
    **_refused("in the responses API its name is reasoning.effort", "reasoning_effort"),
    **_refused("ask for message.output_text.logprobs in include", "logprobs"),
    **_refused("a response has one output: make several calls", "n best_of", off=(1,)),
    **_refused("put documents into the input", "documents"),
    **_refused("use /v1/chat/completions", "continue_final_message return_prompt_text"),
    **_refused("use /v1/chat/completions", "add_generation_prompt", off=(True,)),
    **_refused("use /v1/chat/completions", "add_special_tokens"),
    **_refused("the answer holds the new text only", "echo"),
    **_refused("use /v1/completions", "suffix"),
}

TOKENIZE: Table = {
    **_honoured("", "model prompt messages tools add_special_tokens return_token_strs"),
    **{name: CHAT[name] for name in (*_TURNS, "chat_template_kwargs", "chat_template")},
    **{name: CHAT[name] for name in ("mm_processor_kwargs", "media_io_kwargs")},
    **_refused("in vLLM's API, which this endpoint has, its name is prompt", "content"),
    **_refused("in vLLM's API, which this endpoint has, its name is add_special_tokens", "add_special"),
    **_refused("in vLLM's API, which this endpoint has, its name is return_token_strs", "with_pieces"),
    **_refused("special tokens in the text count as such", "parse_special", off=(True,)),
}
DETOKENIZE: Table = _honoured("", "model tokens")

TABLES: Mapping[str, Table] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
