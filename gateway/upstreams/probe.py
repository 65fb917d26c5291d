"""A probe that checks for an engine at a URL, and for our plugin in it."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from agentspec.wire import OWN_PREFIX

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a request to an engine's ``/agentspec/status``.

    Attributes:
        root: URL of the engine.
        problem: reason why the probe failed; empty if it did not.
        plugin: version of the plugin; empty without one.
        vllm: version of vLLM.
        num_speculative_tokens: largest number of draft tokens per request and step.
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


def probe_engine(root: str, control_token: str | None = None) -> ProbeResult:
    """Probe the engine at ``root``, a URL without ``/v1``. Never raises, and takes a few seconds at most."""
    headers = {"authorization": f"Bearer {control_token}"} if control_token else {}
    try:
        answer = httpx.get(f"{root}{OWN_PREFIX}status", headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        return ProbeResult(root, f"can't be reached yet: {str(error) or type(error).__name__}")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return ProbeResult(root, "wants its $AGENTSPEC_CONTROL_TOKEN: give it as --control-token")
    try:
        status = answer.raise_for_status().json()
        return ProbeResult(
            root,
            plugin=str(status["agentspec"]),
            vllm=str(status["vllm"]),
            num_speculative_tokens=int(status["num_speculative_tokens"]),
        )
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        return ProbeResult(root)
