"""Whether there is an engine at a URL, and whether our plugin is in it."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What an engine's ``/agentspec/status`` told.

    Attributes:
        root: where it was asked.
        problem: why nothing is known; empty if something is.
        plugin: the plugin's version; empty without one.
        vllm: vLLM's.
        num_speculative_tokens: most draft tokens of a request in a step.
    """

    root: str
    problem: str = ""
    plugin: str = ""
    vllm: str = ""
    num_speculative_tokens: int = 0

    def __str__(self) -> str:
        if self.problem:
            return f"the engine at {self.root} {self.problem}"
        if not self.plugin:
            return f"the engine at {self.root} has no AgentSpec plugin: requests are passed on, and no more"
        return (
            f"the engine at {self.root} is vLLM {self.vllm} with AgentSpec {self.plugin}, "
            f"which drafts up to {self.num_speculative_tokens} tokens"
        )


def look(root: str, control_token: str | None = None) -> ProbeResult:
    """Ask the engine at ``root``, a URL without ``/v1``. Never raises; takes some seconds at most."""
    headers = {"authorization": f"Bearer {control_token}"} if control_token else {}
    try:
        answer = httpx.get(f"{root}/agentspec/status", headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        return ProbeResult(root, f"can't be reached yet: {str(error) or type(error).__name__}")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return ProbeResult(root, "wants its $AGENTSPEC_CONTROL_TOKEN: give it as --control-token")
    try:
        told = answer.raise_for_status().json()
        return ProbeResult(
            root,
            plugin=str(told["agentspec"]),
            vllm=str(told["vllm"]),
            num_speculative_tokens=int(told["num_speculative_tokens"]),
        )
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        return ProbeResult(root)
