from __future__ import annotations

from collections.abc import Sequence

from agentspec.gateway.dashboard.traffic import GraphStep, WorkflowGraph


def drawn(flow: WorkflowGraph) -> dict[str, int]:
    return {f"{'/'.join(one)} {'/'.join(other)}": count for (one, other), count in flow.edges.items()}


def play(flow: WorkflowGraph, script: Sequence[str], session: str = "s") -> None:
    """Play a script: ``+a`` begins a call of stage ``a``, ``-a`` ends it, ``a`` does both."""
    live: dict[str, GraphStep] = {}
    for event in script:
        name = event.lstrip("+-")
        if not event.startswith("-"):
            live[name] = flow.begin(session, (name,))
        if not event.startswith("+"):
            flow.end(live.pop(name))


def test_one_after_the_other() -> None:
    flow = WorkflowGraph()
    for session in "xyz":
        play(flow, ["plan", "act", "check"], session)
    assert drawn(flow) == {"plan act": 3, "act check": 3}


def test_what_fans_out_and_comes_together_again() -> None:
    flow = WorkflowGraph()
    play(flow, ["a", "+x", "+y", "-x", "+z", "-z", "-y", "b"])
    assert drawn(flow) == {"a x": 1, "a y": 1, "x z": 1, "z b": 1, "y b": 1}


def test_who_runs_beside_another_does_not_follow_it() -> None:
    flow = WorkflowGraph()
    play(flow, ["+a", "+b", "-b", "-a"])
    assert drawn(flow) == {}


def test_another_try_follows_itself_alone() -> None:
    flow = WorkflowGraph()
    play(flow, ["a", "+x", "+y", "-x", "-y", "x", "b"])
    assert drawn(flow) == {"a x": 1, "a y": 1, "x x": 1, "x b": 1}


def test_sessions_do_not_mix() -> None:
    flow = WorkflowGraph()
    play(flow, ["a"], "one")
    play(flow, ["b"], "two")
    assert drawn(flow) == {}


def test_the_session_that_was_idle_longest_is_forgotten() -> None:
    flow = WorkflowGraph(max_sessions=2)
    for session in ("one", "two", "one", "three"):
        play(flow, ["a"], session)
    play(flow, ["b"], "two")
    assert drawn(flow) == {"a a": 1}
    play(flow, ["b"], "three")
    assert drawn(flow) == {"a a": 1, "a b": 1}


def test_edges_are_bounded_and_known_ones_still_count() -> None:
    flow = WorkflowGraph(max_edges=2)
    for _ in range(2):
        play(flow, ["a", "b", "c", "d"])
    assert drawn(flow) == {"a b": 2, "b c": 2}
