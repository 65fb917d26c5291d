from __future__ import annotations

import pytest

from agentspec.gateway.discovery.masking import masked
from agentspec.gateway.discovery.units import Unit, assigns_role, is_of_turn, units_of, variables


def units(text: str, *, is_system: bool = True) -> list[Unit]:
    return units_of(masked(text), is_system)


@pytest.mark.parametrize(
    "text",
    [
        "Decide which queue handles the message.",
        "You are the router of a support desk.",
        "Never promise a refund.",
        "If nothing is wrong, answer OK.",
        "- Quote the line you mean.",
        "Instructions: reply with one word.",
        "Sentences have at most twenty words.",  # a statement, but about no one
        "## Rules\n- Cite a source.",
        "Your duties:\n- Review a diff",
    ],
)
def test_instructions_are_evidence(text: str) -> None:
    assert units(text)[-1].weight == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "Plan: Pro",
        "- **Language**: German",
        '{"name": "Ann", "plan": "Pro"}',
        "Today is Monday.",
        "The current time is 9:30.",
        "The customer has the Pro plan.",
        "Pro customers are served first.",
        "Ann is a nurse from Rome.",
        "Ann Smith likes tea.",
        "She lives in Rome.",
        "Prefers aisle seats.",
        "You are talking to Ann.",
        "## Memory\n- Never mention the trip.",
        "What you know about the user:\n\n1. Remember the dog.",
        "<user_memory>\nAlways call her Dr. Klein.",
        "Notes\nfoo\n\nContext:\n\nOne text.\n\nAnother text.",
        "Question: Never sort it?",
        "Observation: found it.\nReturn to sender.",
        "SELECT name FROM users",
    ],
)
def test_values_are_none(text: str) -> None:
    unit = units(text)[-1]
    assert unit.weight == 0.0 or not unit.instructs


@pytest.mark.parametrize(
    "text",
    [
        "<memory>\nLikes tea.\n</memory>\nReply with one word.",
        "## Memory\n- Likes tea.\n\nReply with one word.",
        "## Memory\n- Likes tea.\nReply with one word.",
        "Context:\n\nOne text.\n\nReply with one word.",
        "Observation: found it.\n\nReply with one word.",
        "Memory: none\nReply with one word.",
    ],
)
def test_what_follows_values_is_evidence_again(text: str) -> None:
    assert units(text)[-1] == Unit(
        "Reply with one word.", tuple("Reply with one word.".split()), 1.0, instructs=True
    )


@pytest.mark.parametrize(
    ("text", "is_turn"),
    [("Question: why?", True), ("Thought 3: I see.", True), ("Plan: Pro", False), ("Question", False)],
)
def test_turns(text: str, is_turn: bool) -> None:
    assert is_of_turn(units(text)[-1]) is is_turn


def test_a_task_of_a_users_text_is_a_turn() -> None:
    assert units("Task: write a poem.", is_system=False)[0].weight == 0.0
    assert units("Task: write a poem.")[0].weight == 1.0


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("You are the router.", 3),
        ("You are Trend Scout.", 2),
        ("Act as a critic.", 3),
        ("Your task is to plan.", 4),
        ("You are helping Ann.", 0),
        ("Plan a trip.", 0),
    ],
)
def test_the_role_that_a_sentence_assigns(text: str, at: int) -> None:
    assert assigns_role(text.split()) == at


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Call the user Ann Smith today.", "Ann Smith"),
        ("You are Trend Scout, Ann.", "Ann."),
        ("You are Ann's assistant.", "Ann's"),
        ("Return JSON to <email> by #:#.", "<email> #:#."),
    ],
)
def test_words_that_may_be_values(text: str, expected: str) -> None:
    words = text.split()
    assert [word for word, may in zip(words, variables(words, True), strict=True) if may] == expected.split()
