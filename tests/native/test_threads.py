"""One forest, many threads and all calls concurrently. On a free-threaded Python they run in parallel."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from agentspec import Forest, ForestConfig, StageKey
from agentspec.errors import DuplicateRequestError, UnknownRequestError

STAGES = [
    StageKey(tenant, path)
    for tenant in ("acme", "rival")
    for path in (("sql", "plan"), ("sql", "fix"), ("chat",))
]
NO_TOKENS = np.empty(0, np.int32)


@pytest.fixture(autouse=True)
def _hasty_switches() -> Iterator[None]:
    """Make the GIL, if there is one, change hands often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def text(rng: random.Random, length: int) -> np.ndarray:
    return np.random.default_rng(rng.randrange(9)).integers(0, 30, length).astype(np.int32)


def run_together(*tasks: Callable[[], None]) -> None:
    """Run each task in a thread of its own and raise the first error of any."""
    errors: list[BaseException] = []
    starting_line = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        starting_line.wait()
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def serve(forest: Forest, name: str, num_turns: int) -> None:
    """Step batches large enough for several of the core's threads. Requests start and finish meanwhile."""
    rng = random.Random(name)
    live: list[str] = []
    for turn in range(num_turns):
        while len(live) < 20:
            request_id = f"{name}-{turn}-{len(live)}"
            session = rng.choice([None, "s0", "s1"])
            waits, learns = rng.random() < 0.5, rng.random() < 0.8
            prompt = text(rng, rng.randrange(2000))
            forest.start(request_id, rng.choice(STAGES), prompt, session=session, learn=learns, wait=waits)
            live.append(request_id)
        for draft in forest.step([(request_id, text(rng, rng.randrange(6))) for request_id in live], 12):
            assert len(draft) == len(draft.parents) == len(draft.probs) <= 12
            assert ((draft.token_ids >= 0) & (draft.token_ids < 30)).all()
        rng.shuffle(live)
        for _ in range(rng.randrange(4)):
            forest.finish(live.pop(), learn=rng.random() < 0.7)
    for request_id in live:
        forest.finish(request_id)


def quarrel(forest: Forest, name: str, num_turns: int) -> None:
    """Call the forest for requests that other threads start and finish under the same names."""
    rng = random.Random(name)
    calls: list[Callable[[str], object]] = [
        lambda shared: forest.start(shared, STAGES[0], text(rng, 300), session="s0"),
        lambda shared: forest.start(shared, STAGES[1], text(rng, 300), wait=False),
        lambda shared: forest.step([(shared, text(rng, 4))]),
        lambda shared: forest.wait(shared),
        lambda shared: forest.finish(shared, learn=rng.random() < 0.5),
    ]
    for _ in range(num_turns):
        with contextlib.suppress(DuplicateRequestError, UnknownRequestError):
            rng.choice(calls)(f"shared{rng.randrange(3)}")


def meddle(forest: Forest, name: str, num_turns: int) -> None:
    """Learn, evict and read figures concurrently."""
    rng = random.Random(name)
    for turn in range(num_turns):
        stage = rng.choice(STAGES)
        forest.learn(stage, text(rng, rng.randrange(400)))
        stats = forest.stats(rng.choice([None, stage]))
        assert min(stats.tree_bytes, stats.num_sequences, stats.num_tokens, stats.num_requests) >= 0
        assert forest.memory_bytes(stage) <= forest.config.stage_limit_bytes
        assert forest.memory_bytes() <= forest.config.total_limit_bytes
        if turn % 10 == 0:
            forest.evict(stage)
        if turn % 25 == 0:
            forest.check_integrity()


def test_every_call_at_once():
    config = ForestConfig(
        stage_limit_bytes=128 << 10,
        session_limit_bytes=32 << 10,
        tenant_limit_bytes=512 << 10,
        total_limit_bytes=768 << 10,
        depth=12,
        threads=2,
        max_trees=16,
        session_ttl_s=0.01,
    )
    forest = Forest(config)
    run_together(
        *[lambda name=name: serve(forest, name, 60) for name in ("serve0", "serve1")],
        *[lambda name=name: quarrel(forest, name, 1500) for name in ("quarrel0", "quarrel1", "quarrel2")],
        *[lambda name=name: meddle(forest, name, 250) for name in ("meddle0", "meddle1")],
    )
    for i in range(3):
        with contextlib.suppress(UnknownRequestError):
            forest.finish(f"shared{i}")
    forest.check_integrity()
    assert forest.stats().num_requests == forest._core.num_requests() == 0
    for stage in STAGES:
        forest.evict(stage)
        assert forest.memory_bytes(stage) == 0
    forest.check_integrity()


def drafts_of_one_thread(forest: Forest) -> list[tuple[object, ...]]:
    """Return the drafts of a tenant that stays within its own budget, but not within its stage's."""
    rng = random.Random(1)
    stage = StageKey("quiet", ("sql", "plan"))
    offered: list[tuple[object, ...]] = []
    for turn in range(80):
        request_ids = [f"quiet{turn}-{i}" for i in range(3)]
        for request_id in request_ids:
            forest.start(request_id, stage, text(rng, 200), session=f"s{turn % 4}")
        for _ in range(8):
            for draft in forest.step([(request_id, text(rng, 9)) for request_id in request_ids], 12):
                offered.append((draft.token_ids.tolist(), draft.score, draft.match_length, draft.source))
        for request_id in request_ids:
            forest.finish(request_id, learn=rng.random() < 0.7)
    return offered


def test_a_tenant_is_offered_the_same_drafts_however_busy_the_others_are():
    config = ForestConfig(stage_limit_bytes=64 << 10, tenant_limit_bytes=4 << 20, depth=12, threads=2)
    busy, offered = Forest(config), []
    run_together(
        lambda: offered.extend(drafts_of_one_thread(busy)),
        lambda: serve(busy, "serve", 40),
        lambda: quarrel(busy, "quarrel", 500),
        lambda: meddle(busy, "meddle", 150),
    )
    assert offered == drafts_of_one_thread(Forest(config))
    assert sum(len(tokens) for tokens, *_ in offered) > 1000


def test_a_forest_may_go_while_prompts_are_being_indexed():
    def come_and_go() -> None:
        for _ in range(10):
            forest = Forest(ForestConfig(threads=2))
            for i in range(3):
                forest.start(str(i), STAGES[0], np.arange(5000, dtype=np.int32), wait=False)
            forest.step([(str(i), NO_TOKENS) for i in range(3)])

    run_together(*[come_and_go] * 3)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL")
def test_importing_agentspec_leaves_the_gil_off():
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", "import sys, agentspec; sys.exit(sys._is_gil_enabled())"]
    subprocess.run(command, env=environ, check=True)
