from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentspec.gateway.discovery.answers import MAX_KEPT, MAX_SAMPLE_CHARS
from agentspec.gateway.discovery.service import MAX_ANSWER_BYTES, Discovery
from agentspec.gateway.settings import DiscoverySettings

NUM_CALLS = 120
NAMES = "Anna Bob Carla Dmitri".split()
RULES = "Write the full implementation. Keep the signature. Never add a test. Answer with the code alone."
PYTHON = "from typing import List\n\ndef task_{}(values: List[int]) -> int:\n    return values[{}]"
RUST = "use std::collections::HashMap;\n\nfn task_{}(values: Vec<i64>) -> i64 {{\n    values[{}]\n}}"
PLAN = (
    "Write a passage of four paragraphs about {}.\n\nMake a plan first, then write. Use this format:\n\n"
    "Plan:\nYour plan.\n\nPassage:\nYour passage.\n"
)

Answering = Callable[[Random, int], tuple[str, str]]  # a prompt and its answer


def code(rng: Random, number: int) -> tuple[str, str]:
    language, form = rng.choice((("python", PYTHON), ("rust", RUST)))
    return f"You respond with {language} code only. {RULES}", form.format(number, number % 7)


def code_for_users(rng: Random, number: int) -> tuple[str, str]:
    system, answer = code(rng, number)
    return f"{system}\nToday is 2026-01-{number % 27 + 1:02}.\nUser: {rng.choice(NAMES)}", answer


def steps(rng: Random, number: int) -> tuple[str, str]:
    """With a plan below the same text a passage is written."""
    topic = " and ".join(words(rng, 3).split())
    if rng.random() < 0.5:
        return PLAN.format(topic), f"Plan:\n1. Introduce the {words(rng, 1)}.\n2. Describe it."
    return f"{PLAN.format(topic)}Plan:\n1. {words(rng, 4)}.\n", f"Passage:\nOnce there was a {words(rng, 2)}."


def languages(rng: Random, number: int) -> tuple[str, str]:
    language, answer = rng.choice(
        (("English", "Thank you for the question about {}."), ("German", "Vielen Dank, hier zu {} mehr."))
    )
    return f"You answer customers in {language}. {RULES}", answer.format(number)


def greetings(rng: Random, number: int) -> tuple[str, str]:
    name = rng.choice(NAMES)
    return f"You help {name} to write code. {RULES}\nUser: {name}", f"Hello {name}, here it is: {number}."


def plans(rng: Random, number: int) -> tuple[str, str]:
    plan = rng.choice(("free", "pro"))
    return f"You answer {plan} customers. {RULES}", f"Please open the settings, page {number}, and save."


def free(rng: Random, number: int) -> tuple[str, str]:
    return f"You write {rng.choice(('short', 'long'))} stories. {RULES}", words(rng, 30)


def modes(rng: Random, number: int) -> tuple[str, str]:
    """Each prompt gets both kinds of answer."""
    return code(rng, number)[0], code(rng, number)[1]


def words(rng: Random, num: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=7)) for _ in range(num))


CASES: dict[str, tuple[Answering, int]] = {
    "two programming languages": (code, 2),
    "the same, with values": (code_for_users, 2),
    "two steps of one text": (steps, 2),
    "two languages of a user": (languages, 1),
    "a user's name": (greetings, 1),
    "two plans, the same answers": (plans, 1),
    "answers that have nothing in common": (free, 1),
    "two forms of answers to each prompt": (modes, 1),
}


@contextmanager
def discovering(path: Path | None = None) -> Iterator[Discovery]:
    with closing(Discovery(DiscoverySettings(path=path), in_background=False)) as discovery:
        yield discovery


def ask(discovery: Discovery, asked: dict[str, Any], answer: str | None, tenant: str = "acme") -> str:
    """Send a request, give it its answer, if it has one, and return the stage that served it."""
    stage = discovery.stage_of(tenant, asked)
    listener = discovery.listener(asked, 100)
    discovery.catch_up()
    if listener is not None and answer is not None:
        listener(json.dumps({"choices": [{"message": {"content": answer}}]}).encode())
        discovery.hear(listener)
        discovery.catch_up()
    assert stage is not None
    return stage.name


def body(text: str, number: int) -> dict[str, Any]:
    if text.startswith("Write a passage"):
        return {"prompt": text}
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": f"Task {number}"}]}


def served(discovery: Discovery, answering: Answering, tenant: str = "acme", seed: int = 0) -> list[str]:
    """Send calls and return the stages of the last ones."""
    rng = Random(seed)
    stages = []
    for number in range(NUM_CALLS):
        text, answer = answering(rng, number)
        stages.append(ask(discovery, body(text, number), answer, tenant))
    return stages[-NUM_CALLS // 4 :]


@pytest.mark.parametrize("case", CASES)
def test_a_stage_falls_apart_by_what_changes_the_answers(case: str) -> None:
    answering, num_stages = CASES[case]
    with discovering() as discovery:
        assert len(set(served(discovery, answering))) == num_stages


def test_the_two_stages_are_those_of_the_two_prompts() -> None:
    with discovering() as discovery:
        served(discovery, code)
        python, rust = (
            ask(discovery, body(f"You respond with {language} code only. {RULES}", 7), None)
            for language in ("python", "rust")
        )
    assert len({python, rust, "discovered"}) == 3


@pytest.mark.parametrize("few", ["answers", "conversations"])
def test_few_divide_nothing(few: str) -> None:
    with discovering() as discovery:
        rng = Random(0)
        for number in range(NUM_CALLS):
            text, answer = code(rng, number)
            is_few_answers = few == "answers"
            ask(
                discovery,
                body(text, number if is_few_answers else number % 2),
                answer if number < 12 or not is_few_answers else None,
            )
        assert len(discovery.clusters("acme")) == 1


def test_tenants_do_not_mix() -> None:
    """Each tenant has the answers of one language."""
    with discovering() as discovery:
        rng = Random(0)
        for number in range(NUM_CALLS):
            text, answer = code(rng, number)
            for tenant, language in (("acme", "rust"), ("bolt", "python")):
                ask(discovery, body(text, number), answer if language in text else None, tenant)
        assert [len(discovery.clusters(tenant)) for tenant in ("acme", "bolt")] == [1, 1]


@pytest.mark.parametrize("edit", ["name", "pin"])
def test_what_a_person_named_or_pinned_stays_whole(edit: str) -> None:
    with discovering() as discovery:
        ask(discovery, body(code(Random(0), 0)[0], 0), None)
        (cluster,) = discovery.clusters("acme")
        if edit == "name":
            discovery.name("acme", cluster.id, "coder")
        else:
            discovery.pin("acme", cluster.id, True)
        assert len(set(served(discovery, code))) == 1


def test_a_restart_keeps_the_two_stages_and_no_text_of_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "stages.sqlite"
    with discovering(path) as discovery:
        before = set(served(discovery, code_for_users))
    with discovering(path) as discovery:
        again = set(served(discovery, code_for_users, seed=1))
    assert len(before) == 2
    assert again == before
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert not any(text in kept for text in (b"HashMap", b"import List", b"Carla"))


def test_another_process_without_a_file_finds_the_same_names() -> None:
    found = []
    for seed in range(2):
        with discovering() as discovery:
            found.append(set(served(discovery, code, seed=seed)))
    assert found[0] == found[1]


def test_memory_is_bounded() -> None:
    with discovering() as discovery:
        rng = Random(0)
        for number in range(3 * MAX_KEPT):
            text = f"You respond with code only. {RULES}\nDocument: {words(rng, 900)}"
            ask(discovery, body(text, number), words(rng, 5000))
        for cluster in discovery.clusters("acme"):
            kept = cluster.answers.kept
            assert len(kept) <= MAX_KEPT
            assert sum(len(words) for words in {one.words for one in kept}) <= MAX_SAMPLE_CHARS
            assert all(len(one.grams) <= 32 for one in kept)


def test_a_listener_keeps_the_beginning_alone() -> None:
    with discovering() as discovery:
        asked = body(code(Random(0), 0)[0], 0)
        ask(discovery, asked, None)
        discovery.stage_of("acme", asked)
        listener = discovery.listener(asked, 100)
        assert listener is not None
        for _ in range(3):
            listener(b"x" * MAX_ANSWER_BYTES * 2)
        assert sum(map(len, listener.kept)) == MAX_ANSWER_BYTES


def test_nothing_listens_to_other_bodies() -> None:
    with discovering() as discovery:
        asked = body(code(Random(0), 0)[0], 0)
        ask(discovery, asked, None)
        discovery.stage_of("acme", asked)
        assert discovery.listener(dict(asked), 100) is None
        discovery.stage_of("acme", asked)
        assert discovery.listener(asked, 1 << 30) is None
