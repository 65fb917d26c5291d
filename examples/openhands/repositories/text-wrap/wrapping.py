"""Wrap text into lines of at most ``width`` characters."""


def wrap(text: str, width: int) -> list[str]:
    """Return the words in as few lines as possible; a word that is too long has its own line."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + len(word) <= width:
            line = f"{line} {word}"
        else:
            lines.append(line)
            line = word
    return lines


def longest(lines: list[str]) -> int:
    """Return the length of the longest line."""
    return max((len(line) for line in lines), default=0)
