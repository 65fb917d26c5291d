"""Layout of whole texts by paragraph."""

from wrapping import wrap


def layout(text: str, width: int, indent: str = "") -> str:
    """Wrap each paragraph, with an empty line between two and ``indent`` before every line."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    wrapped = [
        "\n".join(indent + line for line in wrap(part, width - len(indent))) for part in paragraphs
    ]
    return "\n\n".join(wrapped)
