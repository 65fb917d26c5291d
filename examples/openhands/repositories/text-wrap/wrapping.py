"""Text in lines of at most ``width`` characters."""


def wrap(text: str, width: int) -> list[str]:
    """The words in as few lines as they fit in; a word that is too long has a line of its own."""
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
    """How many characters the longest line has."""
    return max((len(line) for line in lines), default=0)
