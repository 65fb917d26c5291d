"""Requests as sent by Claude Code 2.1.197 and Codex 0.169.0, with our own prompts in place of theirs.

``tests/clients/test_real_coding_agents.py`` runs the real programs where they are installed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.datastructures import Headers

from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.http.context import NO_URL_TAGS
from agentspec.gateway.stages.read_tags import read_tags
from agentspec.tags import Tags

SESSION = "cf9ab009-9df3-4142-a500-1ff1c0969e3c"
THREAD = "01a20421-74cd-7ed3-962b-30c07a4f8804"
CLAUDE = {
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-app": "cli",
    "x-claude-code-session-id": SESSION,
    "x-stainless-lang": "js",
}
SUB_AGENT = {"x-claude-code-agent-id": "a388474bad3b4ba68"}
NESTED = {**SUB_AGENT, "x-claude-code-parent-agent-id": "a0d27625ccfba53c7"}
CODEX = {
    "originator": "codex_exec",
    "session-id": SESSION,
    "thread-id": SESSION,
    "x-client-request-id": SESSION,
    "x-codex-window-id": f"{SESSION}:0",
}
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("Agent", "Bash", "Edit", "Read")]
SALUTATION = "You are an agent of some kind, built on somebody's kit."
HELPS = "You help a person with the code in the folder that you were started in. " * 3
SEARCHES = "You search files for whoever started you, and never change any of them. " * 3
TITLES = "Write a title for the conversation: a few words that say what it is about. " * 3


def environment(folder: str) -> str:
    return f"\nNotes:\n- Be brief.\n<env>\nWorking directory: {folder}\n</env>\ngitStatus: clean, in {folder}"


def claude_body(prompt: str, **fields: Any) -> dict[str, Any]:
    blocks = ["x-anthropic-billing-header: cc_version=2.1.197.84c; cc_entrypoint=cli;", SALUTATION, prompt]
    return {
        "model": "claude",
        "max_tokens": 32000,
        "metadata": {"user_id": json.dumps({"device_id": "d550d9ff", "session_id": SESSION})},
        "system": [{"type": "text", "text": text} for text in blocks],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "fix it"}]}],
        "stream": True,
        **fields,
    }


def codex_body() -> dict[str, Any]:
    told = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": HELPS}]}]
    return {"model": "gpt", "input": told, "prompt_cache_key": SESSION, "store": False, "stream": True}


def turn(**fields: str) -> dict[str, str]:
    known = {"session_id": SESSION, "agent_name": "look", "request_kind": "turn", "turn_id": THREAD}
    return {"x-codex-turn-metadata": json.dumps({**known, **fields})}


def tags(headers: dict[str, str], body: dict[str, Any]) -> Tags:
    discovery = Discovery(in_background=False)
    found = read_tags("acme", Headers(headers), NO_URL_TAGS, body, discovery)
    discovery.close()
    return found


def stage(headers: dict[str, str], body: dict[str, Any]) -> str:
    found = tags(headers, body)
    assert (found.session, found.stage.tenant) == (SESSION, "acme")
    return found.stage.name


def test_the_main_agent_of_claude_code() -> None:
    for folder in ("/home/a/shop", "/srv/blog"):
        assert stage(CLAUDE, claude_body(HELPS + environment(folder), tools=TOOLS)) == "claude_code/main"
    assert tags(CLAUDE, claude_body(HELPS, tools=TOOLS)).stage_source == "framework"


def test_sub_agents_of_one_kind_are_one_stage_in_all_projects() -> None:
    names = [
        {
            stage({**CLAUDE, **sub_agent}, claude_body(prompt + environment(folder), tools=tools))
            for folder in ("/home/a/shop", "/srv/blog")
            for sub_agent, tools in ((SUB_AGENT, TOOLS), (NESTED, TOOLS[1:]))
        }
        for prompt in (SEARCHES, HELPS, "You judge.\n")
    ]
    assert [len(one) for one in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
    (name,) = names[0]
    assert name.startswith("claude_code/search-file-")


def test_a_small_task_beside_the_conversation() -> None:
    name = stage(CLAUDE, claude_body(TITLES))
    assert name.startswith("claude_code/write-title-conversation-")
    assert stage(CLAUDE, claude_body("Title.")) not in (name, "claude_code/main")


@pytest.mark.parametrize(
    "system", [None, [], 7, "", [7, {"text": 7}], [{"type": "text", "text": "x-anthropic-billing-header: a"}]]
)
def test_a_sub_agent_that_was_told_nothing(system: Any) -> None:
    body = {**claude_body("", tools=TOOLS), "system": system}
    assert not stage({**CLAUDE, **SUB_AGENT}, body).startswith("claude_code")


def test_ids_in_a_prompt_are_not_in_the_name() -> None:
    names = {
        stage({**CLAUDE, **SUB_AGENT}, claude_body(f"{SEARCHES} Agent {one}."))
        for one in (SESSION, THREAD, "3f2504e0-4f89-11d3-9a0c-0305e82c3301")
    }
    assert len(names) == 1
    assert "cf9a" not in names.pop().rpartition("-")[0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (turn(), "codex/main"),
        (turn(request_kind="compaction"), "codex/compaction"),
        (turn(request_kind=THREAD), "codex"),
        ({"x-openai-subagent": "review", **turn(subagent_kind="review")}, "codex/review"),
        ({"x-openai-subagent": "collab_spawn", **turn(), "thread-id": THREAD}, "codex/collab_spawn"),
        ({"x-codex-turn-metadata": "[1"}, "codex/main"),
        ({"x-codex-turn-metadata": "[1]"}, "codex/main"),
        ({"x-codex-turn-metadata": "[" * 5000}, "codex/main"),
        ({}, "codex/main"),
    ],
)
def test_codex(headers: dict[str, str], expected: str) -> None:
    assert stage({**CODEX, **headers}, codex_body()) == expected


def test_what_is_said_on_purpose_goes_before() -> None:
    headers = {**CLAUDE, "x-agentspec-stage": "mine", "x-agentspec-session": "s"}
    found = tags(headers, claude_body(HELPS, tools=TOOLS))
    assert (found.stage.name, found.stage_source, found.session) == ("mine", "header", "s")


def test_a_workflow_in_the_baggage_goes_before_the_role() -> None:
    baggage = {"baggage": "gen_ai.workflow.name=nightly"}
    found = tags({**CLAUDE, **baggage}, claude_body(HELPS, tools=TOOLS))
    assert (found.stage.name, found.stage_source) == ("nightly/claude_code/main", "framework")
    assert stage({**CODEX, **turn(), **baggage}, codex_body()) == "nightly/codex/main"
    found = tags(baggage, {"messages": []})
    assert (found.stage.name, found.stage_source) == ("nightly", "baggage")
