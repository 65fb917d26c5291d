"""``content`` in OpenAI's bodies, as far as it is text: a string, or a list of text parts."""

from __future__ import annotations

from agentspec.errors import RequestError


def read_text(content: object, param: str) -> str:
    """The text; parts are lines, as in vLLM. Raises RequestError, which names ``param``, if it is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of text parts, not {content!r}", param=param)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError(f"{param}[{index}] must be a text part", param=f"{param}[{index}]")
        texts.append(text)
    return "\n".join(texts)
