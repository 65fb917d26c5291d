"""What clients received of a vLLM server's outputs is all that it learns, shares, counts and traces."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.store import open_store
from agentspec.models import bundled_model_dir
from agentspec.stages import StageKey
from agentspec.tags import subject_hash
from agentspec.vllm_plugin.lora import adapted
from benchmarks.vllm.server import Server
from tests.corpus.support.redis_server import running
from tests.corpus.support.replica import stored
from tests.real_vllm.support.corpus import MODES, wait_for
from tests.real_vllm.support.delivered import BROKEN_OFF, CASES, TOOL_CASES, TOOL_FLAGS, ask, whole
from tests.real_vllm.support.servers import ours, serving

pytestmark = pytest.mark.slow

ALL = CASES | TOOL_CASES | BROKEN_OFF
SUBJECT = subject_hash("default", "ann").hex()  # with it, no output is left out


@pytest.mark.parametrize(
    ("mode", "store"), [(mode, store) for mode in MODES for store in ("sqlite", "redis")][: 1 + len(MODES)]
)
def test_what_was_delivered(tmp_path: Path, mode: str, store: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(bundled_model_dir()))
    with ExitStack() as stack:
        place = str(tmp_path / "corpus")
        if store == "redis":
            place = f"redis://127.0.0.1:{stack.enter_context(running(tmp_path))}/0"
        server = stack.enter_context(serving(ours(corpus=place), tmp_path, mode, *TOOL_FLAGS))
        stages = [f"cases/{number}" for number in range(len(ALL))]
        found = [
            ask(server, case, stage=stage, subject=SUBJECT, trace=stage)
            for stage, case in zip(stages, ALL.values(), strict=True)
        ]
        expected = [{whole(tokenizer, choice) for choice in one.choices} - {()} for one in found]
        wait_for(server, lambda seen: seen["num_published"] >= sum(map(len, expected)))
        counted = figures(server)
        assert [counted[stage] for stage in stages] == [one.num_tokens for one in found]
        assert outputs_of(place, stages) == expected
        for stage, one in zip(stages, found, strict=True):
            steps = server.control("trace", id=stage)["steps"] or []
            num_traced = sum(len(step["accepted"]) + (step["own"] is not None) for step in steps)
            assert num_traced in ({len(choice.token_ids) for choice in one.choices} or {0})


def figures(server: Server) -> dict[str, int]:
    """Return the number of output tokens of each stage."""
    return {one["stage"]: one["num_output_tokens"] for one in server.control("stages")["stages"]}


def outputs_of(place: str, stages: list[str]) -> list[set[tuple[int, ...]]]:
    """Return the different outputs of each stage in a store."""
    with closing(open_store(place)) as store:
        logs = [(BatchLog(store, scope.vocabulary), scope.tenant) for scope in store.scopes()]
        batches = [batch for log, tenant in logs for batch in stored(log, tenant)]
    outputs = [output for batch in batches for output in batch.outputs]
    keys = [adapted(StageKey.parse(stage), None) for stage in stages]
    return [{tuple(one.tokens.tolist()) for one in outputs if one.stage == key} for key in keys]
