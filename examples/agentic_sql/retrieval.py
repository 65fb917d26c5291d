"""The bank of solved questions and the search for similar ones. Lexical, deterministic."""

from __future__ import annotations

import re
from functools import cache
from heapq import nlargest
from random import Random

from examples.agentic_sql.questions import BANK, Question, draw

_BANK_SIZE = 200  # per database
_WORD = re.compile(r"[a-z]+")


def _words(text: str) -> frozenset[str]:
    """Return the lower-case words, which carry the question's form; values are capitalized or numbers."""
    return frozenset(_WORD.findall(text[0].lower() + text[1:]))


@cache
def _bank(database: str) -> tuple[tuple[frozenset[str], Question], ...]:
    rng = Random(f"bank {database}")
    questions = (draw(BANK, rng, database) for _ in range(_BANK_SIZE))
    return tuple((_words(q.text), q) for q in questions)


def most_similar(question: str, database: str) -> Question:
    """Return this database's solved question with the highest Jaccard index, never the question itself."""
    return similar(question, database, 1)[0]


def similar(question: str, database: str, number: int) -> list[Question]:
    """Return the nearest solved questions, the nearest first."""
    words = _words(question)

    def similarity(entry: tuple[frozenset[str], Question]) -> float:
        return len(words & entry[0]) / len(words | entry[0])

    others = (entry for entry in _bank(database) if entry[1].text != question)
    return [entry[1] for entry in nlargest(number, others, key=similarity)]
