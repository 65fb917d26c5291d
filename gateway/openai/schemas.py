"""Schemas of the bodies of the generating endpoints, with types and ranges of each field.

Unsupported fields of OpenAI and vLLM are ignored. Those that would change the output are rejected in
``to_generation``.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentspec.errors import RequestError

INT64_MAX = 2**63 - 1
LOGPROBS_INCLUDED = "message.output_text.logprobs"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]


class StreamOptions(_Strict):
    """``stream_options``."""

    include_usage: bool | None = None


class JsonSchemaFormat(_Strict):
    """``response_format.json_schema``."""

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Strict):
    """``response_format``."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class TextFormat(_Strict):
    """``text.format``."""

    type: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextSettings(_Strict):
    """``text``."""

    format: TextFormat | None = None


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
    logit_bias: dict[str, Any] | None = None


class GenerationBody(SamplingBody):
    """Fields of the endpoints that answer with choices."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    response_format: ResponseFormat | None = None


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CompletionBody(GenerationBody):
    """``POST /v1/completions``. ``to_generation`` distinguishes the four forms of ``prompt``."""

    prompt: Any
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class ResponsesBody(SamplingBody):
    """``POST /v1/responses``. ``input`` is a string or a list of items, parsed by ``responses_input``.

    The last fields of type ``Any`` exist only to be rejected: names of other APIs, or features that need
    state between calls.
    """

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
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    messages: Any = None
    max_tokens: Any = None
    response_format: Any = None

    @property
    def has_logprobs(self) -> bool:
        """True if the log probabilities of the text's tokens are requested."""
        return LOGPROBS_INCLUDED in (self.include or ())


class TokenizeBody(_Strict):
    """``POST /tokenize`` as in vLLM, for ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None


class DetokenizeBody(_Strict):
    """``POST /detokenize`` as in vLLM."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


Body = TypeVar("Body", bound=_Strict)


def read_as(kind: type[Body], body: object) -> Body:
    """Validate ``body`` as ``kind``. Raises RequestError, which names the first invalid field."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = _field_name(first["loc"])
        given = "" if first["type"] == "missing" else f", not {_shorten(repr(first['input']))}"
        raise RequestError(f"{param}: {first['msg']}{given}", param=param, code="invalid_value") from None


def _field_name(location: tuple[int | str, ...]) -> str:
    """Return the name of a field in OpenAI's notation: ``messages[0].role``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _shorten(text: str, num_chars: int = 80) -> str:
    return text if len(text) <= num_chars else text[:num_chars] + "..."
