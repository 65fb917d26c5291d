"""vLLM's side of the plugin without vLLM: a batch with moving rows and predefined outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentspec.vllm_plugin.v1.proposer import ForestProposer

MAX_ROWS, MAX_MODEL_LEN, VOCAB_SIZE, EOS = 8, 256, 1000, 7


class OutputKind(Enum):
    """vLLM's ``RequestOutputKind``."""

    DELTA = 1
    FINAL_ONLY = 2


def vllm_config(num_draft_tokens: int = 8, **settings: Any) -> Any:
    """Return the part of vLLM's configuration that the proposer reads."""
    return SimpleNamespace(
        additional_config={"agentspec": {"price": 0.05, **settings}},
        speculative_config=SimpleNamespace(num_speculative_tokens=num_draft_tokens),
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_ROWS, max_num_batched_tokens=MAX_MODEL_LEN),
        model_config=SimpleNamespace(
            get_vocab_size=lambda: VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, skip_tokenizer_init=True
        ),
    )


@dataclass
class Request:
    """A request and the output that the model will give it."""

    req_id: str
    prompt_token_ids: list[int] | None
    output: list[int]
    sampling_params: Any
    lora_request: Any = None
    prompt_embeds: Any = None
    prefill_token_ids: list[int] | None = None
    written: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_embeds or self.prompt)

    @property
    def prompt(self) -> list[int]:
        return self.prompt_token_ids or []


def request(
    name: str,
    output: Sequence[int],
    *,
    prompt: Sequence[int] | None = (1, 2, 3),
    adapter: str | None = None,
    max_tokens: int | None = None,
    stop_token_ids: Sequence[int] = (),
    stop: Sequence[str] = (),
    is_stop_included: bool = False,
    min_tokens: int = 0,
    is_stream: bool = True,
    **tags: Any,
) -> Request:
    """Return a request with the tags as ``agentspec_*`` in ``vllm_xargs``."""
    params = SimpleNamespace(
        extra_args={f"agentspec_{key}": value for key, value in tags.items()},
        max_tokens=max_tokens,
        eos_token_id=EOS,
        stop_token_ids=list(stop_token_ids),
        stop=list(stop),
        include_stop_str_in_output=is_stop_included,
        min_tokens=min_tokens,
        output_kind=OutputKind.DELTA if is_stream else OutputKind.FINAL_ONLY,
    )
    lora = None if adapter is None else SimpleNamespace(lora_name=adapter)
    embeds = [0.0, 0.0] if prompt is None else None
    return Request(name, None if prompt is None else list(prompt), list(output), params, lora, embeds)


class Runner:
    """A caller of a proposer, in place of vLLM's worker. Every step assigns the rows anew."""

    def __init__(self, proposer: ForestProposer) -> None:
        self.max_model_len = MAX_MODEL_LEN
        self.no_penalties = True
        self.proposer = proposer
        self.drafter = proposer.planner.drafter
        self.live: dict[str, Request] = {}
        self._finished: list[str] = []
        self._seen: set[str] = set()
        self.input_batch: Any = None
        proposer.attach(self)

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.live[one.req_id] = one

    def finish(self, *names: str) -> None:
        for name in names:
            del self.live[name]
            self._finished.append(name)

    def step(self, names: Iterable[str] | None = None, *, chunk: bool = False) -> dict[str, list[int]]:
        """Run one step of these requests, in this order of rows; None = of all requests.

        ``chunk``: reads only a part of their prompts. Returns the draft of each request.
        """
        rows = [self.live[name] for name in (self.live if names is None else names)]
        self._place(rows)
        new = [one for one in rows if one.req_id not in self._seen]
        self._seen.update(one.req_id for one in new)
        planner = self.proposer.planner
        planner.begin_step(
            SimpleNamespace(
                finished_req_ids=set(self._finished),
                preempted_req_ids=None,
                scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
                scheduled_spec_decode_tokens={one.req_id: one.draft for one in rows if one.draft},
                total_num_scheduled_tokens=sum(1 + len(one.draft) for one in rows),
            )
        )
        self._finished.clear()
        planner.start(new)
        sampled = [[] if chunk else self._sample(row, one) for row, one in enumerate(rows)]
        drafts = self.proposer.propose(
            sampled, self.input_batch.num_tokens_no_spec, self.input_batch.token_ids_cpu, slot_mappings=None
        )
        planner.observe()
        self.drafter.settle()
        assert len(drafts) == len(rows)
        for one, draft in zip(rows, drafts, strict=True):
            one.draft = draft
        return {one.req_id: one.draft for one in rows}

    def run(self, name: str) -> int:
        """Run all steps of one request and finish it. Return the number of steps."""
        one, num_steps = self.live[name], 0
        while len(one.written) < len(one.output):
            self.step([name])
            num_steps += 1
        self.finish(name)
        return num_steps

    def _place(self, rows: Sequence[Request]) -> None:
        tokens = np.full((MAX_ROWS, MAX_MODEL_LEN), -9, np.int32)
        lengths = np.zeros(MAX_ROWS, np.int32)
        for row, one in enumerate(rows):
            text = [*(one.prompt or [0] * one.num_prompt_tokens), *one.written]
            tokens[row, : len(text)] = text
            lengths[row] = len(text)
        self.input_batch = SimpleNamespace(
            no_penalties=self.no_penalties,
            bad_words_token_ids={},
            req_ids=[one.req_id for one in rows],
            req_id_to_index={one.req_id: row for row, one in enumerate(rows)},
            token_ids_cpu=tokens,
            num_tokens_no_spec=lengths,
            num_prompt_tokens=np.array(
                [one.num_prompt_tokens for one in rows] + [0] * (MAX_ROWS - len(rows))
            ),
        )

    def _sample(self, row: int, one: Request) -> list[int]:
        """Verify its draft: accept the tokens that agree with the output, and add one."""
        rest = one.output[len(one.written) :]
        agreed = next(
            (n for n, (a, b) in enumerate(zip(one.draft, rest, strict=False)) if a != b),
            min(len(one.draft), len(rest)),
        )
        sampled = rest[: agreed + 1]
        one.written += sampled
        batch = self.input_batch
        end = batch.num_tokens_no_spec[row] + len(sampled)
        assert end <= self.max_model_len, "vLLM would stop here"
        batch.token_ids_cpu[row, batch.num_tokens_no_spec[row] : end] = sampled
        batch.num_tokens_no_spec[row] = end
        return sampled
