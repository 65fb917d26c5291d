"""A plan for the stub's response, encoded as a model name: every gateway passes that on."""

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
    """One response.

    Attributes:
        delay_ms: time from the request's last byte to the response's first.
        num_chunks: chunks of a stream, a word each; a whole response has the same number of words.
        gap_ms: time from each chunk to the next.
        status: status of the response; other than 200 is an error.
        breaks_after: number of chunks after which the connection is closed; 0 = never.
        mark: the request's name in the stub's marks, letters and digits; "" = not recorded.
    """

    delay_ms: int = 0
    num_chunks: int = 50
    gap_ms: int = 0
    status: int = 200
    breaks_after: int = 0
    mark: str = ""

    @property
    def model(self) -> str:
        """Model name that encodes the plan, such as ``stub-d20-c50``; defaults are omitted."""
        values = ((letter, getattr(self, name)) for letter, name in _LETTERS.items())
        said = [f"{letter}{value}" for letter, value in values if value != _DEFAULTS[_LETTERS[letter]]]
        return "-".join((PREFIX, *said))

    @classmethod
    def parse(cls, model: str) -> Plan:
        """Parse a model name; the inverse of ``model``.

        Raises:
            ValueError: the name encodes no plan.
        """
        prefix, *said = model.split("-")
        if prefix != PREFIX or not all(one and one[0] in _LETTERS for one in said):
            raise ValueError(f"a plan looks like 'stub-d20-c50-g20', not {model!r}")
        texts = {_LETTERS[one[0]]: one[1:] for one in said}
        given: dict[str, Any] = {name: text if name == "mark" else int(text) for name, text in texts.items()}
        return cls(**given)

    def marked(self, mark: str) -> Plan:
        """Return the same plan with a mark, so that the stub records it."""
        return replace(self, mark=mark)


_DEFAULTS = {one.name: one.default for one in fields(Plan)}
