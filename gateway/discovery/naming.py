"""Names for discovered stages: a few words on the topic of the prompt, and a short digest.

Names appear in metrics and headers and must not leak the contents of a prompt's slots. With only the first
prompt of a kind, the slots are not known yet. So a name contains only words of the lists below: actions of
agents and their objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

MAX_WORDS = 3
HEAD_CHARS = 1000
FALLBACK = "prompt"

_ACTIONS = """
analyze answer ask book browse call chat check choose classify code combine compare compress condense convert
correct critique debug decide delegate describe detect diagnose draft edit enrich evaluate execute explain
explore extract filter find fix format generate grade guess help identify imagine inspect interpret judge
label link list localize match merge moderate monitor navigate observe optimize orchestrate parse pick plan
play predict prioritize rank read reason recommend refactor refine reflect rephrase reply report research
resolve retrieve review revise rewrite route run score search select simulate solve sort speak split
summarize tag teach test think transform translate triage validate verify vote write
""".split()
_NOUNS = """
airline api article assistant bug calendar citation claim coder command commit conversation critic customer
data database debugger designer developer dialogue diff docs document editor email entity error essay
evidence expert feature file function grader guideline image insight intent issue java javascript json judge
keyword knowledge language law letter link log manager math medical meeting memory message model movie news
note orchestrator outline paper passage plan planner poem policy python query question reflection reply report
repository request research researcher response retail review reviewer router rule rust schema script
sentiment shell sql sqlite story student style summary support table task teacher telecom terminal test
ticket title tool topic translator travel tutor tweet user verifier vote web website weather workflow writer
""".split()
# roles of agents in a workflow; no occupations of people, which may be a prompt's topic, and no "agent"
_ROLES = frozenset(
    """
analyst architect auditor classifier coder coordinator corrector critic debater debugger designer developer
editor evaluator executor extractor grader judge moderator navigator negotiator optimizer orchestrator
planner programmer proofreader ranker refiner researcher retriever reviewer router scheduler searcher
selector simulator solver strategist summarizer supervisor synthesizer tester translator validator verifier
voter worker writer
""".split()
)
_SAYS_ROLE = ("you are ", "you're ", "act as ", "your role is ", "role: ")
_NEW_PHRASE = frozenset("for to with of who that which in at on by and from as".split())
MAX_ROLES = 4
MAX_ROLE_WORDS = 5
MAX_ROLE_CHARS = 120
_STOPS = ".,:;!?"
_WORD = re.compile(r"[A-Za-z]{2,20}+")


def slug(texts: Iterable[str]) -> str:
    """Return the first three or fewer listed words in these texts: ``classify-question``."""
    found: dict[str, None] = {}
    for text in texts:
        for word in _WORD.findall(text[:HEAD_CHARS]):
            known = _LISTED.get(word.lower())
            if known and len(found) < MAX_WORDS:
                found.setdefault(known)
    return "-".join(found) or FALLBACK


def is_action(word: str) -> bool:
    """True for the base form of a listed action: ``write``, not ``writes``."""
    return word in _BASE


def roles(words: str) -> tuple[str, ...]:
    """Return the roles that a masked prompt assigns: ``planner`` for ``You are the planner``.

    Prompts with different roles belong to different stages, however similar they are.
    """
    text = words.lower()
    said = sorted(place for phrase in _SAYS_ROLE for place in islice(_places(phrase, text), MAX_ROLES))
    named = (tuple(word for word in _phrase(text, place) if word in _ROLES) for place in said[:MAX_ROLES])
    return next((found for found in named if found), ())


def _places(phrase: str, text: str) -> Iterator[int]:
    """Yield the positions in ``text`` after each occurrence of the phrase."""
    place = text.find(phrase)
    while place >= 0:
        yield place + len(phrase)
        place = text.find(phrase, place + 1)


def _phrase(text: str, place: int) -> Iterator[str]:
    """Yield the next few words, up to a punctuation mark or a word that begins a new phrase.

    Yields nothing for ``You are helping ...``, since the next words name the agent's user.
    """
    for at, word in enumerate(text[place : place + MAX_ROLE_CHARS].split()[:MAX_ROLE_WORDS]):
        if word in _NEW_PHRASE or (at == 0 and word.endswith("ing")):
            return
        yield word.rstrip(_STOPS)
        if word[-1] in _STOPS:
            return


def _forms(word: str) -> list[str]:
    """Return the inflected forms of a verb, such as ``write``, ``writes``, ``writing``."""
    stem = word.removesuffix("e")
    doubled = stem + stem[-1]
    british = word[:-2] + "se" if word.endswith("ze") else word
    return [
        word,
        british,
        word + "s",
        word + "es",
        stem + "ed",
        stem + "ing",
        doubled + "ing",
        british[:-1] + "ing" if british != word else word,
    ]


def _listed() -> dict[str, str]:
    """Map every form of every listed word to the word."""
    listed = {form: word for word in _ACTIONS for form in _forms(word)}
    listed.update({word + "s": word for word in _NOUNS})
    listed.update({word: word for word in (*_NOUNS, *_ACTIONS)})
    return listed


_LISTED = _listed()
_BASE = frozenset(_ACTIONS)
