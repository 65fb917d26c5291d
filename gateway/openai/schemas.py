"""Schemas of request bodies, with types and ranges of each field that is honoured.

``fields`` says what happens to all other fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentspec.errors import RequestError
from agentspec.gateway.openai.fields import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    RESPONSES,
    TOKENIZE,
    Table,
    refuse_unsupported,
)

MAX_BIASES = MAX_BAD_WORDS = 1024
INT64_MAX = 2**63 - 1
LOGPROBS_INCLUDED = "message.output_text.logprobs"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    fields: ClassVar[Table] = {}


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


NonEmpty = Annotated[str, Field(min_length=1)]
StopStrings = Annotated[list[NonEmpty], Field(max_length=16)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Biases = dict[
    Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]
]  # by token id


class StreamOptions(_Strict):
    """``stream_options``."""

    include_usage: bool | None = None


class StructuredOutputs(_Strict):
    """vLLM's ``structured_outputs``."""

    json_: Any = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str] | None, Field(min_length=1)] = None
    grammar: str | None = None
    json_object: bool | None = None

    @property
    def has_form(self) -> bool:
        """True if there is a member that asks for a form."""
        return bool(self.json_object) or any(
            member is not None for member in (self.json_, self.regex, self.choice, self.grammar)
        )


class JsonSchemaFormat(_Strict):
    """``response_format.json_schema``."""

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Strict):
    """``response_format``. In llama.cpp's form the schema is a member of its own."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextFormat(_Strict):
    """``text.format``."""

    type: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextSettings(_Strict):
    """``text``."""

    format: TextFormat | None = None


class Reasoning(_Strict):
    """``reasoning``."""

    effort: str | None = None


class SamplingBody(_Strict):
    """Fields of all generating endpoints. ``null`` means absent, as with OpenAI."""

    model: str | None = None
    stream: bool | None = None
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: Annotated[StopStrings | None, BeforeValidator(_one_or_more)] = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    ignore_eos: bool | None = None
    repetition_penalty: float | None = Field(None, ge=0.01, le=2)
    logit_bias: Annotated[Biases | None, Field(max_length=MAX_BIASES)] = None
    allowed_token_ids: Annotated[list[TokenId] | None, Field(min_length=1)] = None
    bad_words: Annotated[list[NonEmpty] | None, Field(max_length=MAX_BAD_WORDS)] = None
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: list[TokenId] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str] | None, Field(min_length=1)] = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


class GenerationBody(SamplingBody):
    """Fields of the endpoints that answer with choices."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    response_format: ResponseFormat | None = None


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    fields: ClassVar[Table] = CHAT

    messages: list[dict[str, Any]] = Field(min_length=1)
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CompletionBody(GenerationBody):
    """``POST /v1/completions``. ``to_generation`` distinguishes the four forms of ``prompt``."""

    fields: ClassVar[Table] = COMPLETIONS

    prompt: Any
    add_special_tokens: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None


class ResponsesBody(SamplingBody):
    """``POST /v1/responses``. ``input`` is a string or a list of items, parsed by ``responses_input``."""

    fields: ClassVar[Table] = RESPONSES

    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextSettings | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def has_logprobs(self) -> bool:
        """True if the log probabilities of the text's tokens are requested."""
        return LOGPROBS_INCLUDED in (self.include or ())


class TokenizeBody(_Strict):
    """``POST /tokenize`` as in vLLM, for ``prompt`` or ``messages``."""

    fields: ClassVar[Table] = TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(_Strict):
    """``POST /detokenize`` as in vLLM."""

    fields: ClassVar[Table] = DETOKENIZE

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


Body = TypeVar("Body", bound=_Strict)


def read_as(kind: type[Body], body: object) -> Body:
    """Validate ``body`` as ``kind``. Raises RequestError, which names the first invalid or refused field."""
    if isinstance(body, Mapping):
        refuse_unsupported(kind.fields, body)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = _field_name(first["loc"])
        given = "" if first["type"] == "missing" else f", not {_shorten(repr(first['input']))}"
        raise RequestError(f"{param}: {first['msg']}{given}", param=param, code="invalid_value") from None


def _field_name(location: tuple[int | str, ...]) -> str:
    """Return the name of a field in OpenAI's notation: ``messages[0].role``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return "".join(parts).removeprefix(".")


def _shorten(text: str, num_chars: int = 80) -> str:
    return text if len(text) <= num_chars else text[:num_chars] + "..."
