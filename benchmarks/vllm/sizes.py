"""Sizes of the full and the quick vLLM benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work.

    Attributes:
        num_chats: prompts in lossless, whole questions of seven.
        num_clients: concurrent requests in lossless, a run for each.
        num_questions: questions of the SQL example, each about seven requests.
        num_rounds: rounds of it, each with new servers; the results are medians.
        soak_minutes: duration of the soak; its last two thirds are judged.
        num_soak_chats: different requests in it.
        no_repeat_pairs: pairs of servers, one with and one without the plugin.
        no_repeat_chats, no_repeat_turns: requests of one client in a turn, and turns of each server.
    """

    num_chats: int = 203
    num_clients: tuple[int, ...] = (1, 8, 32)
    num_questions: int = 40
    num_rounds: int = 3
    soak_minutes: float = 30.0
    num_soak_chats: int = 2_800
    no_repeat_pairs: int = 10
    no_repeat_chats: int = 8
    no_repeat_turns: int = 4


FULL = Sizes()
QUICK = Sizes(
    num_chats=14,
    num_clients=(1, 8),
    num_questions=3,
    num_rounds=1,
    soak_minutes=1.0,
    num_soak_chats=70,
    no_repeat_pairs=1,
    no_repeat_chats=2,
    no_repeat_turns=2,
)
