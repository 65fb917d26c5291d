from __future__ import annotations

from random import Random

import pytest

from agentspec.gateway.discovery.templates import MAX_RUNS, Template, common_words

NAMES = ["Ann", "Bob Ray", "Carl von Ohm", "Dee", "Eve", "Finn"]
TASKS = ["a trip", "the new car", "tax", "an invoice", "moving", "her garden"]
HELP = "You are helping {} with {} today. Be kind."


def words(rng: Random, num_words: int) -> str:
    return " ".join("".join(rng.choices("abcdefgh", k=rng.randint(3, 8))) for _ in range(num_words))


def template_of(texts: list[str]) -> Template | None:
    """Return the template of what all texts have in common."""
    common, *others = (text.split() for text in texts)
    for other in others:
        common = common_words(common, other)
    return Template.of_common(common, max(len(text.split()) for text in texts))


def helping() -> Template:
    template = template_of([HELP.format(*pair) for pair in zip(NAMES, TASKS, strict=True)])
    assert template is not None
    return template


def test_slots_are_what_differs() -> None:
    assert helping().text == "You are helping <...> with <...> today. Be kind."
    assert helping().num_words == 7


@pytest.mark.parametrize(
    ("text", "num_words"),
    [
        (HELP.format("Zoe", "nothing at all"), 7),
        ("You are helping nobody today.", 0),
        ("Be kind. with today. You are helping", 0),
        ("", 0),
        (HELP.format("Zoe", "much " * 200), 0),  # a text of another kind with the same beginning and end
    ],
)
def test_a_prompt_is_of_the_kind_or_not(text: str, num_words: int) -> None:
    assert helping().num_words_in(f" {text} ") == num_words


def test_texts_with_little_in_common_have_no_template() -> None:
    assert template_of(["You are a kind cook of soups.", "You are a judge who is fair at all times."]) is None
    assert template_of(["one", "two"]) is None


def test_documents_are_slots_however_long() -> None:
    rng = Random(1)
    head, tail = words(rng, 50), words(rng, 30)
    texts = [f"{head} {words(rng, rng.randint(200, 1000))} {tail}" for _ in range(12)]
    template = template_of(texts)
    assert template is not None
    assert template.text == f"{head} <...> {tail}"


def test_the_order_of_the_founders_does_not_matter() -> None:
    texts = [HELP.format(*pair) for pair in zip(NAMES, TASKS, strict=True)]
    for seed in range(20):
        Random(seed).shuffle(texts)
        assert template_of(texts) == helping()


def test_random_texts_never_lose_what_all_have_in_common() -> None:
    """Every founder contains the template's words, in order."""
    for seed in range(200):
        rng = Random(seed)
        pool = [words(rng, rng.randint(1, 4)) for _ in range(8)] + ["the", "of the"]
        texts = [" ".join(rng.choices(pool, k=rng.randint(5, 30))) for _ in range(rng.randint(2, 6))]
        template = template_of(texts)
        for text in texts if template else ():
            assert template is not None
            assert template.num_words_in(f" {text} ") == template.num_words


def test_repeated_words_take_no_longer() -> None:
    assert template_of(["a " * 4096, "a " * 4095]) is None  # no word occurs once
    assert template_of([f"x {'a ' * 4000} y", f"x {'a ' * 4000} y"]) is not None


def test_a_template_has_few_runs() -> None:
    texts = [" ".join(f"a{i} b{i} c{i} {name}{i}" for i in range(200)) for name in ("x", "y", "z")]
    template = template_of(texts)
    assert template is not None
    assert len(template.runs) == MAX_RUNS
    assert all(template.num_words_in(f" {text} ") == 3 * MAX_RUNS for text in texts)
