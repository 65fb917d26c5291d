from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from agentspec.config import DraftConfig
from agentspec.engine import scheduler as scheduler_module
from agentspec.engine.request import Choice, LiveRequest
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.sampling.stop import StopStrings
from agentspec.engine.scheduler import MIN_SHARED, Scheduler
from agentspec.errors import EngineBusyError
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.stages import StageKey
from agentspec.tags import Tags
from tests.support.fakes import STAGE, make_draft


def make_choice(num_prompt_tokens: int, name: str = "r", max_tokens: int = 10) -> Choice:
    params = SamplingParams(temperature=0)
    return Choice(
        live=LiveRequest(
            GenerationRequest(name, "", params, Tags(STAGE)), cast(asyncio.AbstractEventLoop, None)
        ),
        index=0,
        key=name,
        prompt_ids=np.arange(num_prompt_tokens, dtype=np.int32),
        sampler=SamplerState(params),
        draft=DraftConfig(max_tokens=4),
        max_tokens=max_tokens,
        eos_ids=(),
        stream=cast(Any, None),
        stops=StopStrings(()),
    )


def take_pass(scheduler: Scheduler) -> dict[str, list[int]]:
    """Return the rows of each sequence in the next pass, and append the token that each one receives."""
    rows = scheduler.next_rows()
    tokens = {row.choice.key: row.token_ids.tolist() for row in rows}
    for row in rows:
        gives_token = row.gives_token
        row.choice.num_cached += len(row.token_ids)
        if gives_token:
            row.choice.output_ids.append(100 + len(row.choice.output_ids))
    return tokens


def test_a_prompt_is_read_in_chunks_while_others_decode() -> None:
    scheduler = Scheduler(num_slots=2, max_batch_tokens=4, max_queue=9)
    scheduler.add([make_choice(2, "short")])
    assert take_pass(scheduler) == {"short": [0, 1]}
    scheduler.add([make_choice(10, "long")])
    assert take_pass(scheduler) == {"short": [100], "long": [0, 1, 2, 3]}
    assert take_pass(scheduler) == {"short": [101], "long": [4, 5, 6, 7]}
    assert take_pass(scheduler) == {"short": [102], "long": [8, 9]}
    assert take_pass(scheduler) == {"short": [103], "long": [100]}


def test_prompts_share_the_budget_in_order_of_admission() -> None:
    scheduler = Scheduler(num_slots=3, max_batch_tokens=6, max_queue=9)
    scheduler.add([make_choice(4, "a"), make_choice(4, "b"), make_choice(4, "c")])
    assert take_pass(scheduler) == {"a": [0, 1, 2, 3], "b": [0, 1]}
    assert take_pass(scheduler) == {"a": [100], "b": [2, 3], "c": [0, 1, 2, 3]}


def test_a_row_gives_a_token_only_at_the_prompts_end() -> None:
    scheduler = Scheduler(num_slots=1, max_batch_tokens=4, max_queue=9)
    choice = make_choice(6)
    scheduler.add([choice])
    first = scheduler.next_rows()[0]
    assert (first.gives_token, first.is_decode) == (False, False)
    assert first.segment().logits_from == 4
    choice.num_cached += 4
    second = scheduler.next_rows()[0]
    assert (second.gives_token, second.is_decode) == (True, False)
    assert (second.segment().start, second.segment().logits_from) == (4, 1)
    choice.num_cached += 2
    choice.output_ids.append(7)
    third = scheduler.next_rows()[0]
    assert (third.gives_token, third.is_decode) == (True, True)
    assert (third.segment().start, third.segment().logits_from) == (6, 0)


def test_a_draft_follows_the_last_token() -> None:
    scheduler = Scheduler(num_slots=1, max_batch_tokens=4, max_queue=9)
    choice = make_choice(2)
    scheduler.add([choice])
    take_pass(scheduler)
    row = scheduler.next_rows()[0]
    row.draft = make_draft([5, 6])
    chain = row.segment()
    assert chain.token_ids.tolist() == [100, 5, 6]
    assert chain.parents is None
    row.draft = make_draft([5, 6, 7], [-1, -1, 0])
    tree = row.segment()
    assert tree.token_ids.tolist() == [100, 5, 6, 7]
    assert tree.parents is not None
    assert tree.parents.tolist() == [-1, 0, 0, 1]
    assert tree.parents.dtype == np.int32
    assert tree.logits_from == 0


def test_slots_are_given_in_order_and_used_again() -> None:
    scheduler = Scheduler(num_slots=2, max_batch_tokens=100, max_queue=9)
    a, b, c = (make_choice(1, name) for name in "abc")
    scheduler.add([a, b, c])
    assert list(take_pass(scheduler)) == ["a", "b"]
    assert (scheduler.num_free, scheduler.num_waiting) == (0, 1)
    slot = a.slot
    scheduler.release(a)
    assert not a.is_scheduled
    assert list(take_pass(scheduler)) == ["b", "c"]
    assert c.slot == slot
    for choice in (b, c, c):  # releasing twice is harmless
        scheduler.release(choice)
    assert scheduler.num_free == 2
    assert not scheduler.has_work


def test_a_waiting_sequence_can_be_released() -> None:
    scheduler = Scheduler(num_slots=1, max_batch_tokens=100, max_queue=9)
    a, b = make_choice(1, "a"), make_choice(1, "b")
    scheduler.add([a, b])
    take_pass(scheduler)
    b.live.is_cancelled = True
    assert scheduler.take_cancelled() == [b]
    scheduler.release(b)
    assert scheduler.live() == [a]


def test_the_waiting_line_is_bounded() -> None:
    scheduler = Scheduler(num_slots=1, max_batch_tokens=100, max_queue=2)
    scheduler.add([make_choice(1) for _ in range(3)])  # one will have a slot
    with pytest.raises(EngineBusyError, match="at most 2") as caught:
        scheduler.add([make_choice(1)])
    assert caught.value.status == 429
    take_pass(scheduler)
    with pytest.raises(EngineBusyError):
        scheduler.add([make_choice(1)])
    scheduler.release(scheduler.live()[0])
    take_pass(scheduler)
    with pytest.raises(EngineBusyError):  # all or none
        scheduler.add([make_choice(1), make_choice(1)])
    scheduler.add([make_choice(1)])


@pytest.mark.parametrize(
    ("max_tokens", "num_output", "room"), [(10, 1, 4), (10, 6, 3), (10, 9, 0), (1, 1, 0)]
)
def test_a_draft_leaves_room_for_the_next_token(max_tokens: int, num_output: int, room: int) -> None:
    choice = make_choice(1, max_tokens=max_tokens)
    choice.output_ids.extend(range(num_output))
    assert choice.draft_room == room


def test_a_prompt_goes_on_where_another_ended() -> None:
    scheduler = Scheduler(num_slots=3, max_batch_tokens=999, max_queue=9, keeps_prompts=True)
    first = make_choice(200, "first")
    scheduler.add([first])
    take_pass(scheduler)
    slot = first.slot
    scheduler.release(first)
    second, short = make_choice(210, "second"), make_choice(MIN_SHARED - 1, "short")
    scheduler.add([second, short])
    assert take_pass(scheduler)["second"] == [*range(200, 210)]
    assert (second.slot, short.num_cached) == (slot, MIN_SHARED - 1)
    scheduler.release(second)
    again = make_choice(210, "again")
    scheduler.add([again])
    assert take_pass(scheduler) == {"short": [100], "again": [209]}  # read again for its logits
    assert again.slot == slot


def test_no_tenant_goes_on_where_another_ended() -> None:
    scheduler = Scheduler(num_slots=1, max_batch_tokens=999, max_queue=9, keeps_prompts=True)
    mine, yours = make_choice(200, "mine"), make_choice(200, "yours")
    yours.live = LiveRequest(
        replace(yours.live.request, tags=Tags(StageKey("acme", ("a",)))), yours.live.loop
    )
    scheduler.add([mine])
    take_pass(scheduler)
    scheduler.release(mine)
    scheduler.add([yours])
    assert take_pass(scheduler) == {"yours": [*range(200)]}


# ---- memory ----


class TokenMemory:
    """Memory for ``limit`` tokens in all. Implements :class:`agentspec.engine.scheduler.SlotMemory`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved: dict[int, int] = {}

    def reserve(self, slot: int, num_tokens: int) -> bool:
        others = sum(num for one, num in self.reserved.items() if one != slot)
        if others + num_tokens > self.limit:
            return False
        self.reserved[slot] = num_tokens
        return True

    def clear(self, slot: int) -> None:
        self.reserved.pop(slot, None)


def with_memory(limit: int, num_slots: int = 4, **settings: Any) -> tuple[Scheduler, TokenMemory]:
    memory = TokenMemory(limit)
    return Scheduler(num_slots, 999, 99, memory=memory, **settings), memory


def test_sequences_wait_for_memory_in_order_of_arrival() -> None:
    scheduler, memory = with_memory(100)
    choices = [make_choice(30, "a"), make_choice(40, "b"), make_choice(60, "c"), make_choice(5, "d")]
    scheduler.add(choices)  # of ten output tokens each
    assert list(take_pass(scheduler)) == ["a", "b"]
    assert scheduler.num_waiting == 2  # "d" would fit, and "c" came first
    scheduler.release(choices[0])
    assert list(take_pass(scheduler)) == ["b"]
    scheduler.release(choices[1])
    assert list(take_pass(scheduler)) == ["c", "d"]
    for choice in choices:
        scheduler.release(choice)
    assert memory.reserved == {}


def test_the_last_sequence_gives_way_and_reads_its_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "GROWTH", 2)
    scheduler, _ = with_memory(25)
    first, second = make_choice(6, "first", 15), make_choice(4, "second", 15)
    scheduler.add([first, second])  # with a draft of four tokens and the growth
    assert take_pass(scheduler) == {"first": [*range(6)], "second": [*range(4)]}
    for number in range(2):
        assert take_pass(scheduler) == {"first": [100 + number], "second": [100 + number]}
    assert take_pass(scheduler) == {"first": [102]}
    assert (second.num_cached, second.is_scheduled, second.is_prefilling) == (0, False, True)
    assert scheduler.live() == [first, second]
    scheduler.add([make_choice(1, "third", 1)])
    assert take_pass(scheduler) == {"first": [103]}  # the third came later
    scheduler.release(first)
    assert take_pass(scheduler) == {"second": [0, 1, 2, 3, 100, 101, 102], "third": [0]}
    assert take_pass(scheduler)["second"] == [103]


def test_kept_prompts_make_room() -> None:
    scheduler, memory = with_memory(250, keeps_prompts=True)
    first, second = make_choice(100, "first"), make_choice(80, "second")
    second.prompt_ids = second.prompt_ids + 7
    scheduler.add([first, second])
    take_pass(scheduler)
    slot = second.slot
    for choice in (first, second):
        scheduler.release(choice)
    assert sorted(memory.reserved.values()) == [90, 110]
    third = make_choice(100, "third")
    third.prompt_ids = np.concatenate([second.prompt_ids, third.prompt_ids[:40]])
    scheduler.add([third])
    assert take_pass(scheduler) == {"third": [*range(40)]}  # it goes on where the second ended
    assert third.slot == slot
    assert sorted(memory.reserved.values()) == [110, 130]
    fourth = make_choice(90, "fourth")
    fourth.prompt_ids = fourth.prompt_ids + 50
    scheduler.add([fourth])
    take_pass(scheduler)
    assert fourth.is_scheduled
    assert sorted(memory.reserved.values()) == [100, 130]  # the first one's text is gone


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("keeps_prompts", [False, True])
def test_all_sequences_end_whatever_they_need(
    seed: int, keeps_prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random sequences, some as large as the memory. Each text is read in order, within its memory."""
    monkeypatch.setattr(scheduler_module, "GROWTH", 8)
    rng = np.random.default_rng(seed)
    memory = TokenMemory(120)
    scheduler = Scheduler(5, 40, 99, memory=memory, keeps_prompts=keeps_prompts)
    sizes = [(int(prompt), int(rng.integers(1, 121 - prompt))) for prompt in rng.integers(1, 119, 40)]
    choices = [make_choice(prompt, str(i), most) for i, (prompt, most) in enumerate(sizes)]
    scheduler.add(choices)
    num_suspended = 0
    while scheduler.has_work:
        before = [choice for choice in scheduler.live() if choice.is_scheduled]
        rows = scheduler.next_rows()
        assert rows  # no sequence waits for another one that waits
        assert not before or before[0].is_scheduled  # the oldest goes on
        num_suspended += sum(not choice.is_scheduled for choice in before)
        assert sum(memory.reserved.values()) <= memory.limit
        for row in rows:
            choice = row.choice
            end = choice.num_cached + len(row.token_ids)
            assert row.token_ids.tolist() == choice.known_ids[choice.num_cached : end].tolist()
            assert end + choice.draft_room <= memory.reserved[choice.slot]
            gives_token = row.gives_token
            choice.num_cached = end
            if gives_token:
                choice.output_ids.append(len(choice.output_ids))
            if len(choice.output_ids) == choice.max_tokens:
                scheduler.release(choice)
    assert [len(choice.output_ids) for choice in choices] == [most for _, most in sizes]
    assert num_suspended


def test_a_kept_text_keeps_its_memory_until_it_goes() -> None:
    scheduler, memory = with_memory(999, num_slots=1, keeps_prompts=True)
    long, short, other = make_choice(400, "long"), make_choice(70, "short"), make_choice(70, "other")
    other.prompt_ids = other.prompt_ids + 500
    for choice, num_reserved in ((long, 410), (short, 400), (other, 80)):
        scheduler.add([choice])
        take_pass(scheduler)
        assert memory.reserved == {0: num_reserved}
        scheduler.release(choice)
