"""``content`` in OpenAI's bodies, as far as it is text: a string, or a list of text parts."""

from __future__ import annotations

from collections.abc import Collection

from agentspec.errors import RequestError

CHAT_PARTS = ("text",)
RESPONSES_PARTS = ("input_text", "output_text", "text")


def read_text(content: object, param: str, kinds: Collection[str] = CHAT_PARTS) -> str:
    """The text; parts are lines, as in vLLM.

    ``kinds``: the types of a part that is text. Raises RequestError, which names ``param``, if it is no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of text parts, not {content!r}", param=param)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind in kinds else None
        if not isinstance(text, str):
            raise RequestError(
                f"{param}[{index}] must be a text part, not of type {kind!r}", param=f"{param}[{index}]"
            )
        texts.append(text)
    return "\n".join(texts)
