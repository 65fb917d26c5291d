"""What the stub is to do with a request, written as the name of a model: every gateway passes that on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

PREFIX = "stub"
HANG_MS = 600_000

_LETTERS = {
    "d": "delay_ms",
    "c": "num_chunks",
    "g": "gap_ms",
    "s": "status",
    "x": "breaks_after",
    "m": "mark",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer.

    Attributes:
        delay_ms: from the request's last byte to the answer's first.
        num_chunks: of a stream, a word each; an answer in one piece has as many words.
        gap_ms: from each chunk to the next.
        status: of an answer that is an error if it is not 200.
        breaks_after: the chunks after which the connection is closed; 0 = never.
        mark: what the stub remembers the request by, letters and digits; "" = not at all.
    """

    delay_ms: int = 0
    num_chunks: int = 50
    gap_ms: int = 0
    status: int = 200
    breaks_after: int = 0
    mark: str = ""

    @property
    def model(self) -> str:
        """The model's name that asks for this: ``stub-d20-c50``; defaults are left out."""
        values = ((letter, getattr(self, name)) for letter, name in _LETTERS.items())
        said = [f"{letter}{value}" for letter, value in values if value != _DEFAULTS[_LETTERS[letter]]]
        return "-".join((PREFIX, *said))

    @classmethod
    def parse(cls, model: str) -> Plan:
        """The inverse of ``model``.

        Raises:
            ValueError: no plan is written so.
        """
        prefix, *said = model.split("-")
        if prefix != PREFIX or not all(one and one[0] in _LETTERS for one in said):
            raise ValueError(f"a plan looks like 'stub-d20-c50-g20', not {model!r}")
        texts = {_LETTERS[one[0]]: one[1:] for one in said}
        given: dict[str, Any] = {name: text if name == "mark" else int(text) for name, text in texts.items()}
        return cls(**given)

    def marked(self, mark: str) -> Plan:
        """The same, remembered by the stub."""
        return replace(self, mark=mark)


_DEFAULTS = {one.name: one.default for one in fields(Plan)}
