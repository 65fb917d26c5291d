"""Generated workflows with known templates: slots, documents, examples and roles in system prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from lab.stages.untagged import Untagged

NUM_SESSIONS = 200
MAX_TURNS = 4
_SYLLABLES = "ba co di fu ga he ji ko la mu ne pi qua ro si ta vu we xi yo za bri cle dro fla gre".split()
_NAMES = "Anna Bob Carla Dmitri Elif Femi Grace Hiro Ines Jamal Kira Luis Mona Nils Olga Priya".split()
_TASKS = (
    "an unpaid invoice;a trip to Rome;the new kitchen;a broken phone;their tax return;a lost parcel;"
    "moving house;a birthday party;their first car;a gym contract"
).split(";")
_SHORT = (
    "You are helping {name} with {task}.",
    "You are a translator for {name}. Translate the text to English.",
    "Summarize what {name} says about {task} in one sentence.",
    "Decide whether {name} has to be asked again before {task} is closed. Answer yes or no.",
    "You write friendly letters on behalf of {name} about {task}, on {date}.",
)
_LINES = (
    "Find contradictions in it.;List what is still open.;Is the tone friendly?;Turn it into three points.;"
    "Say what is missing.;Guess who wrote it."
).split(";")
_ROLES = "planner researcher coder reviewer tester writer".split()

Prompt = Callable[[int], str]  # takes the number of the stage; each call fills the slots anew


def workloads(seed: int) -> dict[str, list[Untagged]]:
    """Return the calls of each workload in order, by name."""
    rng = Random(f"stages {seed}")
    return {
        "slots": _sessions(rng, 5, _with_slots(rng)),
        "short": _sessions(rng, len(_SHORT), lambda stage: _filled(_SHORT[stage], rng)),
        "documents": _sessions(rng, 5, _with_documents(rng)),
        "few_shot": _sessions(rng, 5, _with_examples(rng)),
        "roles": _sessions(rng, len(_ROLES), _with_roles(rng, "Today is {date}.")),
        "roles_slots": _sessions(rng, len(_ROLES), _with_roles(rng, "You work for {name} on {task}.")),
        "lines": _sessions(rng, len(_LINES), _with_lines(rng, "Today is {date}.")),
        "lines_slots": _sessions(rng, len(_LINES), _with_lines(rng, "You work for {name} on {task}.")),
    }


def _sessions(rng: Random, num_stages: int, prompt: Prompt) -> list[Untagged]:
    """Return calls of sessions of one to four turns, interleaved; each has one system prompt."""
    waiting = [list(_session(rng, number % num_stages, prompt)) for number in range(NUM_SESSIONS)]
    live: list[list[Untagged]] = []
    calls = []
    while waiting or live:
        while waiting and len(live) < 8:
            live.append(waiting.pop())
        session = rng.choice(live)
        calls.append(session.pop(0))
        live = [one for one in live if one]
    return calls


def _session(rng: Random, stage: int, prompt: Prompt) -> Iterator[Untagged]:
    messages = [{"role": "system", "content": prompt(stage)}, {"role": "user", "content": sentences(rng, 20)}]
    for _ in range(rng.randint(1, MAX_TURNS)):
        yield Untagged(str(stage), {"messages": list(messages)})
        messages += [{"role": role, "content": sentences(rng, 20)} for role in ("assistant", "user")]


def _with_slots(rng: Random) -> Prompt:
    """Prompts of 600 words with two slots."""
    parts = [[sentences(rng, 200) for _ in range(3)] for _ in range(5)]
    return lambda stage: _filled(
        f"{parts[stage][0]} {{name}} {parts[stage][1]} {{task}}. {parts[stage][2]}", rng
    )


def _with_documents(rng: Random) -> Prompt:
    """Prompts of 80 words around a document of 200 to 1,000."""
    parts = [(sentences(rng, 50), sentences(rng, 30)) for _ in range(5)]
    return lambda stage: f"{parts[stage][0]}\n\n{sentences(rng, rng.randint(200, 1000))}\n\n{parts[stage][1]}"


def _with_examples(rng: Random) -> Prompt:
    """Prompts of 60 words and four examples of forty."""
    heads = [sentences(rng, 60) for _ in range(5)]
    pools = [
        [f"Input: {sentences(rng, 12)}\nOutput: {sentences(rng, 25)}" for _ in range(40)] for _ in range(5)
    ]
    return lambda stage: "\n\n".join((heads[stage], *rng.sample(pools[stage], 4)))


def _with_roles(rng: Random, rest: str) -> Prompt:
    """Prompts with one preamble for all stages, the role on its own line, and ``rest``."""
    return _with_preamble(rng, [f"You are the {role}." for role in _ROLES], rest)


def _with_lines(rng: Random, rest: str) -> Prompt:
    """The same with a task on that line, which names no role."""
    return _with_preamble(rng, _LINES, rest)


def _with_preamble(rng: Random, lines: Sequence[str], rest: str) -> Prompt:
    preamble, after = sentences(rng, 250), sentences(rng, 50)
    return lambda stage: _filled(f"{preamble}\n{lines[stage]}\n{after}\n{rest}", rng)


def _filled(template: str, rng: Random) -> str:
    date = f"{rng.randint(1, 28)} May 20{rng.randint(20, 29)}"
    name = f"{rng.choice(_NAMES)} {_word(rng).title()}"
    return template.format(name=name, task=rng.choice(_TASKS), date=date)


def sentences(rng: Random, num_words: int) -> str:
    """Return sentences of words, a few of which are frequent as in any language."""
    words = [
        _COMMON[rng.randrange(len(_COMMON))] if rng.random() < 0.4 else _word(rng) for _ in range(num_words)
    ]
    return " ".join(words).capitalize() + "."


def _word(rng: Random) -> str:
    return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))


_COMMON = "the of and to a in is it you that for on are with as at be this have from or by not".split()
