from __future__ import annotations

from random import Random

import pytest

from agentspec.gateway.discovery.templates import ENOUGH_PROMPTS, MAX_RUNS, Sketch, Slots, Template

NAMES = ["Ann", "Bob Ray", "Carl von Ohm", "Dee", "Eve", "Finn"]
TASKS = ["a trip", "the new car", "tax", "an invoice", "moving", "her garden"]
HELP = "You are helping {} with {} today. Be kind."


def words(rng: Random, num_words: int) -> str:
    return " ".join("".join(rng.choices("abcdefgh", k=rng.randint(3, 8))) for _ in range(num_words))


def helping() -> Template:
    template = Template.of([HELP.format(*pair) for pair in zip(NAMES, TASKS, strict=True)])
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


def test_what_stands_in_slots() -> None:
    text = f" {HELP.format('Zoe', 'much to do')} "
    assert helping().values_in(text) == ["", "Zoe", "much to do", ""]
    assert helping().values_in(" You are helping nobody ") == []
    zoes = helping().with_value(1, "Zoe")
    assert zoes.text == "You are helping Zoe with <...> today. Be kind."
    assert zoes.num_words_in(text) == zoes.num_words == 8
    assert zoes.num_words_in(f" {HELP.format('Ann', 'tax')} ") == 0
    assert helping().with_value(0, "Oh:").text == "Oh: You are helping <...> with <...> today. Be kind."
    assert helping().with_value(3, "Bye.").text == "You are helping <...> with <...> today. Be kind. Bye."


def test_a_slot_with_few_values_tells() -> None:
    slots = Slots()
    for number in range(ENOUGH_PROMPTS):
        assert slots.deciding_slot() is None
        slots.note(["", f"name {number}", "xyz"[number % 3], ""])
    assert slots.deciding_slot() == (2, ["x", "y", "z"])
    slots.note(["", "name", "new", ""])
    assert slots.deciding_slot() is None


def test_texts_with_little_in_common_have_no_template() -> None:
    assert Template.of(["You are a kind cook of soups.", "You are a judge who is fair at all times."]) is None
    assert Template.of(["one", "two"]) is None


def test_documents_are_slots_however_long() -> None:
    rng = Random(1)
    head, tail = words(rng, 50), words(rng, 30)
    texts = [f"{head} {words(rng, rng.randint(200, 1000))} {tail}" for _ in range(12)]
    template = Template.of(texts)
    assert template is not None
    assert template.text == f"{head} <...> {tail}"


def test_the_order_of_the_founders_does_not_matter() -> None:
    texts = [HELP.format(*pair) for pair in zip(NAMES, TASKS, strict=True)]
    for seed in range(20):
        Random(seed).shuffle(texts)
        assert Template.of(texts) == helping()


def test_random_texts_never_lose_what_all_have_in_common() -> None:
    """Every founder contains the template's words, in order."""
    for seed in range(200):
        rng = Random(seed)
        pool = [words(rng, rng.randint(1, 4)) for _ in range(8)] + ["the", "of the"]
        texts = [" ".join(rng.choices(pool, k=rng.randint(5, 30))) for _ in range(rng.randint(2, 6))]
        template = Template.of(texts)
        for text in texts if template else ():
            assert template is not None
            assert template.num_words_in(f" {text} ") == template.num_words


def test_repeated_words_take_no_longer() -> None:
    assert Template.of(["a " * 4096, "a " * 4095]) is None  # no word occurs once
    assert Template.of([f"x {'a ' * 4000} y", f"x {'a ' * 4000} y"]) is not None


def test_a_template_has_few_runs() -> None:
    texts = [" ".join(f"a{i} b{i} c{i} {name}{i}" for i in range(200)) for name in ("x", "y", "z")]
    template = Template.of(texts)
    assert template is not None
    assert len(template.runs) == MAX_RUNS
    assert all(template.num_words_in(f" {text} ") == 3 * MAX_RUNS for text in texts)


def test_sketches_count_what_is_in_common() -> None:
    rng = Random(2)
    common, others = words(rng, 400), [words(rng, 800) for _ in range(2)]
    one, other = (Sketch.of(f"{common} {rest}") for rest in others)
    assert 300 < one.num_common(other) < 520
    assert Sketch.of("a b c").num_common(Sketch.of("a b d")) == 2
    assert Sketch.of("").num_common(one) == 0
