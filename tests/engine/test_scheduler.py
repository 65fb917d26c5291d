from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from agentspec.config import DraftConfig
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
