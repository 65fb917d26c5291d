"""Generated workflows of six roles whose conversations grow, with slots as agents' prompts have them.

Each kind is a way in which real prompts vary: fixed text, a growing ReAct text, a memory block, facts of the
user, a long common preamble, and one agent for several plans and languages. A variant draws everything else
from its number: vocabulary, lengths, positions, forms of slots and order of sessions. Discovery was designed
on the variants below ``NUM_TUNED``; the others are held back, and half of the vocabularies occur only there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from lab.stages.untagged import Untagged

KINDS = ("fixed", "react", "memory", "profile", "preamble", "support")
NUM_TUNED = 100
NUM_ROLES = 6
MAX_TURNS = 6
NUM_LIVE = 8

_NAMES = (
    "Anna Bob Carla Dmitri Elif Femi Grace Hiro Ines Jamal Kira Luis Mona Nils Olga Priya "
    "Quentin Rosa Sven Tariq Uma Viktor Wen Xenia Yusuf Zora".split()
)
_SURNAMES = "Meyer Okafor Tanaka Silva Novak Haddad Larsen Rossi Patel Dubois Kowalski Ferreira".split()
_CITIES = "Berlin Oslo Lagos Osaka Lima Porto Utrecht Seoul Tunis Gdansk Quito Bergen".split()
_JOBS = "nurse;teacher;data engineer;carpenter;lawyer;tax adviser;photographer;shop owner".split(";")
_PLANS = ("Free", "Basic", "Pro", "Enterprise", "Team", "Trial")
_LANGUAGES = "English German French Spanish Italian Portuguese Japanese".split()
_HABITS = (
    "prefers short answers;wants sources for every claim;likes bullet points;is new to the product;"
    "asks follow-up questions;reads on a phone;works at night;is a vegetarian;travels with two children;"
    "has a tight budget;dislikes small talk;pays by invoice;uses a screen reader;speaks little English"
).split(";")


@dataclass(frozen=True, slots=True)
class Words:
    """A vocabulary: nouns of roles, and words from which sentences are made."""

    roles: Sequence[str]
    verbs: Sequence[str]
    things: Sequence[str]
    places: Sequence[str]


def _words(roles: str, verbs: str, things: str, places: str) -> Words:
    return Words(roles.split(), verbs.split(), things.split(), places.split(";"))


TUNED = (
    _words(
        "router summarizer planner coder critic researcher writer tester",
        "check read compare list group mark rewrite count quote sort explain rank trim extract",
        "ticket order refund message thread claim plan diff function test source note question answer",
        "in the queue;from the last week;before the deadline;for the team;of the customer;in one table;"
        "without comments;with its number;from the archive",
    ),
    _words(
        "triager extractor scheduler translator verifier editor analyst dispatcher",
        "find merge draft verify label schedule translate convert split review collect measure close open",
        "invoice meeting clause paragraph symptom shipment room calendar figure date page term route bill",
        "of the contract;by urgency;in both versions;at the border;across all sites;in the appendix;"
        "of each patient;with a reason;for the next shift",
    ),
)
HELD_BACK = (
    _words(
        "navigator grader moderator synthesizer retriever negotiator auditor composer",
        "inspect grade flag weigh combine propose reject locate record trace restate balance approve sketch",
        "essay auction post melody lease policy premium tariff photo survey vote chapter recipe garden",
        "under the old rules;for every bidder;beside the original;of the second reader;in plain words;"
        "until noon;against the ledger;per household;along the coast",
    ),
)
# forms of answers; half of them begin alike for all roles, several quote the user or the user's values
ANSWER_FORMS = (
    "{opening} {text}",
    "Hello {name}, {opening} {text}",
    "Sure! Here is what I found for {name}:\n- {opening}\n- {text}",
    'I need to look at "{asked}" first. {opening} {text}',
    '{{"{head}": "{thing}", "reason": "{text}"}}',
    "{head} {thing}",
)
_TEXT_WORD = re.compile(r"\w+")
_SYLLABLES = "ba co di fu ga he ji ko la mu ne pi qua ro si ta vu we xi yo za bri cle dro fla gre".split()


def _made_up(rng: Random) -> Words:
    """Return a vocabulary of no language."""

    def word() -> str:
        return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4)))

    return Words(
        [word() for _ in range(12)],
        [word() for _ in range(40)],
        [word() for _ in range(60)],
        [f"{word()} {word()} {word()}" for _ in range(20)],
    )


@dataclass(slots=True)
class Role:
    """A role: its static texts, and what its calls ask and answer."""

    name: str
    opening: str
    rules: list[str]
    asks: str
    answers: list[str]
    form: str  # of its answers
    facts: list[str] = field(default_factory=list)


Prompt = Callable[[Role, Random], str]  # of one conversation: each call fills the slots anew


def calls(kind: str, variant: int, num_calls: int, traffic: int = 0) -> list[Untagged]:
    """Return the calls of a kind's variant in order. Another ``traffic`` has the same roles, other sessions.

    Calls of held-back variants use vocabularies that no other variant has.
    """
    rng = Random(f"workflow {kind} {variant}")
    words = _vocabulary(rng, variant)
    if kind == "support":
        roles = [_role(rng, words, "support agent")]
        # two other agents, so that the index is defined
        roles += [_role(rng, words, name) for name in rng.sample(list(words.roles), 2)]
    else:
        roles = [_role(rng, words, name) for name in rng.sample(list(words.roles), NUM_ROLES)]
    prompt = _PROMPTS[kind](rng, words, roles)
    turns = _react_turns if kind == "react" else _chat_turns
    is_one_message = rng.random() < 0.5
    order = Random(f"traffic {kind} {variant} {traffic}")
    num_live = rng.choice((1, 4, NUM_LIVE))
    live: list[Iterator[Untagged]] = []
    result: list[Untagged] = []
    while len(result) < num_calls:
        while len(live) < num_live:
            role = order.choice(roles)
            live.append(turns(role, prompt(role, order), words, order, is_one_message))
        session = order.choice(live)
        call = next(session, None)
        if call is None:
            live.remove(session)
        else:
            result.append(call)
    return result


def _vocabulary(rng: Random, variant: int) -> Words:
    is_held_back = variant >= NUM_TUNED
    if rng.random() < 0.25:
        return _made_up(rng)
    return rng.choice(HELD_BACK if is_held_back else TUNED)


def _sentence(rng: Random, words: Words) -> str:
    """Return an instruction."""
    verb, thing, other = rng.choice(words.verbs), rng.choice(words.things), rng.choice(words.things)
    place = rng.choice(words.places)
    form = rng.choice(
        (
            "{verb} the {thing} {place}.",
            "Never {verb} a {thing} that has no {other}.",
            "If there is a {thing}, {verb} the {other} {place}.",
            "Always {verb} each {thing} and every {other} {place}.",
            "You {verb} only one {thing} at a time.",
            "Do not {verb} the {thing} twice, even if the {other} is missing.",
            "When the {thing} is unclear, {verb} the {other} first and say so.",
            "Your answer has one {thing} per line, {place}.",
        )
    )
    text = form.format(verb=verb, thing=thing, other=other, place=place)
    return text[0].upper() + text[1:]


def _role(rng: Random, words: Words, name: str) -> Role:
    verb, thing, place = rng.choice(words.verbs), rng.choice(words.things), rng.choice(words.places)
    opening = rng.choice(
        (
            f"You are the {name}. You {verb} each {thing} {place}.",
            f"You are a {name} who has to {verb} the {thing} {place}.",
            f"As the {name} of a workflow, {verb} the {thing} {place}.",
            f"Your task is to {verb} one {thing} {place}, as its {name}.",
            f"{verb.capitalize()} the {thing} {place}. Act as a careful {name}.",
        )
    )
    rules = [_sentence(rng, words) for _ in range(rng.randint(3, 9))]
    asks = f"{rng.choice(words.things).capitalize()}: {{}}\nPlease {rng.choice(words.verbs)} it."
    answers = [
        f"{rng.choice(words.verbs).capitalize()} {rng.choice(words.things)} {rng.choice(words.places)}:"
        for _ in range(3)
    ]
    facts = [_fact(rng, words) for _ in range(12)]
    return Role(name, opening, rules, asks, answers, rng.choice(ANSWER_FORMS), facts)


def _fact(rng: Random, words: Words) -> str:
    """Return something that is known of a user."""
    thing, other, place = rng.choice(words.things), rng.choice(words.things), rng.choice(words.places)
    return rng.choice(
        (
            f"The user {rng.choice(_HABITS)}.",
            f"Works as a {rng.choice(_JOBS)} in {rng.choice(_CITIES)}.",
            f"Asked about a {thing} {place} on {_date(rng)}.",
            f"Has {rng.randint(2, 30)} open {thing} entries and one {other} {place}.",
            f"Their {thing} was changed {place} by {rng.choice(_NAMES)}.",
        )
    )


def _date(rng: Random) -> str:
    day, month = rng.randint(1, 28), rng.choice("January March May July October December".split())
    return rng.choice(
        (f"2026-{rng.randint(1, 12):02}-{day:02}", f"{day} {month} 2026", f"{month} {day}, 2026")
    )


def _static(role: Role, separator: str) -> str:
    return f"{role.opening}{separator}{separator.join(role.rules)}"


# ---- the six kinds ----


def _fixed(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """Prompts that never change."""
    common = " ".join(_sentence(rng, words) for _ in range(rng.randint(0, 4)))
    separator = rng.choice((" ", "\n"))
    texts = {role.name: f"{_static(role, separator)}\n{common}" for role in roles}
    return lambda role, order: texts[role.name]


def _react(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """A frame in the first user message: instructions, tools, perhaps an example, then a question."""
    has_example = rng.random() < 0.5
    question = rng.choice(("Question:", "Task:", "Input:"))
    common = (
        "Use this format:\nThought: what to do next\nAction: one of the tools\nObservation: what it gave\n"
        "... repeat until done, then give the Final Answer."
    )
    texts = {}
    for role in roles:
        tools = "\n".join(
            f"{rng.choice(words.verbs)}_{rng.choice(words.things)}: {_sentence(rng, words)}" for _ in range(3)
        )
        example = f"Example:\n{question} {_sentence(rng, words)}\nThought: {_sentence(rng, words)}\n\n"
        texts[role.name] = (
            f"{_static(role, ' ')}\nTools:\n{tools}\n{common}\n\n{example if has_example else ''}"
        )
    return lambda role, order: (
        f"{texts[role.name]}{question} {_sentence(order, words)} {_sentence(order, words)}\n"
    )


def _memory(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """A block of facts about the user within the system prompt."""
    form = rng.choice(("bullets", "paragraph", "tag", "numbers", "bare"))
    heading = rng.choice(
        (
            "## Memory",
            "What you know about the user:",
            "Memories:",
            "User notes",
            "# Long-term memory",
            "Context:",
        )
    )
    place = rng.choice(("start", "middle", "end"))
    shared = [_fact(rng, words) for _ in range(rng.choice((10, 30)))]
    users = [rng.sample(shared, rng.randint(2, 6)) for _ in range(rng.choice((6, 12)))]
    from_whom = rng.choice(("users", "pool", "roles", "new"))
    separator = rng.choice((" ", "\n"))

    def facts(role: Role, order: Random) -> list[str]:
        if from_whom == "users":
            return order.choice(users)
        pool = role.facts if from_whom == "roles" else shared
        if from_whom == "new":
            pool = [_fact(order, words) for _ in range(8)]
        return order.sample(pool, order.randint(1, 6))

    def block(chosen: Sequence[str]) -> str:
        if form == "tag":
            return "<memory>\n" + "\n".join(chosen) + "\n</memory>"
        if form == "paragraph":
            return f"{heading}\n{' '.join(chosen)}"
        if form == "bare":
            return "\n".join(chosen)
        marks = (f"{at}." if form == "numbers" else "-" for at in range(1, len(chosen) + 1))
        return heading + "\n" + "\n".join(f"{mark} {fact}" for mark, fact in zip(marks, chosen, strict=True))

    return lambda role, order: _placed(role, block(facts(role, order)), place, separator)


def _placed(role: Role, block: str, place: str, separator: str) -> str:
    if place == "start":
        return f"{block}\n\n{_static(role, separator)}"
    if place == "end":
        return f"{_static(role, separator)}\n\n{block}"
    half = len(role.rules) // 2
    return (
        f"{role.opening}{separator}{separator.join(role.rules[:half])}\n\n{block}\n\n"
        f"{separator.join(role.rules[half:])}"
    )


def _profile(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """Name, date and profile of the user."""
    form = rng.choice(("sentences", "fields", "json", "inline"))
    place = rng.choice(("start", "middle", "end"))
    names = rng.sample(_NAMES, rng.choice((4, 8, 20)))
    separator = rng.choice((" ", "\n"))

    def prompt(role: Role, order: Random) -> str:
        name, city, job = order.choice(names), order.choice(_CITIES), order.choice(_JOBS)
        if order.random() < 0.3:
            name += f" {order.choice(_SURNAMES)}"
        habits = " and ".join(order.sample(_HABITS, 2))
        date, plan = _date(order), order.choice(_PLANS[:4])
        if form == "inline":
            text = _static(role, separator).replace(". ", f", for {name}. ", 1)
            return f"{text}\nToday is {date}. {name} is a {job} from {city} who {habits}."
        blocks = {
            "sentences": f"Today is {date}. You are talking to {name}, a {job} from {city} who {habits}.",
            "fields": f"User: {name}\nDate: {date}\nPlan: {plan}\nProfile: {job} from {city}, {habits}",
            "json": f'{{"name": "{name}", "date": "{date}", "job": "{job}", "city": "{city}", '
            f'"plan": "{plan}", "notes": "{habits}"}}',
        }
        return _placed(role, blocks[form], place, separator)

    return prompt


def _preamble(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """A long text that all roles share, and a short one of the role's own at any place."""
    preamble = [_sentence(rng, words) for _ in range(rng.choice((15, 30, 60)))]
    place = rng.choice((0, len(preamble) // 2, len(preamble)))
    num_rules = rng.randint(0, 4)
    slot = rng.choice(
        ("", "Today is {date}.", "You work for {name} on {date}.", "The customer is {name} from {city}.")
    )
    separator = rng.choice((" ", "\n"))
    texts = {}
    for role in roles:
        own = separator.join((role.opening, *role.rules[:num_rules]))
        texts[role.name] = separator.join((*preamble[:place], own, *preamble[place:])) + f"\n{slot}"
    return lambda role, order: texts[role.name].format(
        date=_date(order), name=order.choice(_NAMES[:8]), city=order.choice(_CITIES)
    )


def _support(rng: Random, words: Words, roles: Sequence[Role]) -> Prompt:
    """One agent for four plans and three languages."""
    plans, languages = rng.sample(_PLANS, 4), rng.sample(_LANGUAGES, 3)
    form = rng.choice(
        (
            "The customer has the {plan} plan. Answer in {language}.",
            "Plan: {plan}\nLanguage: {language}",
            "Reply in {language}. {plan} customers are served within a day.",
            "# Customer\n- plan: {plan}\n- language: {language}",
        )
    )
    place = rng.choice(("start", "middle", "end"))
    return lambda role, order: _placed(
        role, form.format(plan=order.choice(plans), language=order.choice(languages)), place, " "
    )


_PROMPTS: dict[str, Callable[[Random, Words, Sequence[Role]], Prompt]] = {
    "fixed": _fixed,
    "react": _react,
    "memory": _memory,
    "profile": _profile,
    "preamble": _preamble,
    "support": _support,
}


def _answer(role: Role, prompt: str, asked: str, words: Words, order: Random) -> str:
    """Return what a role answers: in its form, with the prompt's values, in the language it asks for."""
    name = next((word for word in _TEXT_WORD.findall(prompt) if word in _NAMES), "you")
    facts = [line.strip(" -") for line in prompt.splitlines() if any(habit in line for habit in _HABITS)]
    language = next((one for one in _LANGUAGES[1:] if one in prompt), None)
    if language is not None:
        words = _made_up(Random(language))
    opening = order.choice(role.answers) if language is None else f"{words.roles[0]} {words.places[0]}:"
    text, thing = _sentence(order, words), order.choice(words.things)
    if facts and order.random() < 0.3:
        text += f" You said: {order.choice(facts)}"
    form = role.form if language is None else ANSWER_FORMS[0]
    return form.format(
        name=name, opening=opening, text=text, thing=thing, asked=asked[:60], head=role.answers[0].split()[0]
    )


def _chat_turns(
    role: Role, system: str, words: Words, order: Random, is_one_message: bool
) -> Iterator[Untagged]:
    """Yield the calls of a chat, each with the former turns."""
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": role.asks.format(_sentence(order, words))},
    ]
    for _ in range(order.randint(1, MAX_TURNS)):
        answer = _answer(role, system, messages[-1]["content"], words, order)
        yield Untagged(role.name, {"messages": list(messages)}, answer)
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": _sentence(order, words)})


def _react_turns(
    role: Role, frame: str, words: Words, order: Random, is_one_message: bool
) -> Iterator[Untagged]:
    """Yield the calls of a ReAct loop without a system prompt: one text that grows, or messages."""
    text, messages = f"{frame}Thought:", [{"role": "user", "content": frame}]
    for _ in range(order.randint(1, MAX_TURNS)):
        prompt = [{"role": "user", "content": text}] if is_one_message else list(messages)
        answer = _answer(role, frame, frame.splitlines()[-1], words, order)
        thought = f"{answer}\nAction: {order.choice(words.verbs)}"
        yield Untagged(role.name, {"messages": prompt}, f"{'' if is_one_message else 'Thought: '}{thought}")
        seen = _sentence(order, words)
        text += f" {thought}\nObservation: {seen}\nThought:"
        messages.append({"role": "assistant", "content": f"Thought: {thought}"})
        messages.append({"role": "user", "content": f"Observation: {seen}"})
