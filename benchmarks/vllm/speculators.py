"""The drafters that are compared: none, vLLM's own suffix decoding, and the plugin."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.launch import DEFAULT_MAX_DRAFT, RUNNER_VARIABLE, vllm_command, vllm_environment
from benchmarks.vllm.chats import MODEL_NAME
from benchmarks.vllm.server import HOST, Server, free_port

NUM_SPECULATIVE_TOKENS = 32
MAX_MODEL_LEN = 2048
V2_ENVIRONMENT = ".venv-vllm-v2"


@dataclass(frozen=True, slots=True)
class Speculator:
    """One way to draft.

    Attributes:
        num_tokens: maximum length of a draft.
        method: vLLM's own method; None with the plugin or without speculation.
        options: further options of this method.
        settings: the plugin's settings; None without the plugin.
        draft_model: drafts together with the plugin's trees.
        flags: vLLM flags only for this one.
        environment: variables of the process only for this one.
    """

    name: str
    num_tokens: int = NUM_SPECULATIVE_TOKENS
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    draft_model: str | None = None
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(
        self, model: str, flags: Sequence[str], port: int, environment: Mapping[str, str] = os.environ
    ) -> list[str]:
        """Return vLLM's command line for a process with these variables."""
        flags = [*flags, *self.flags]
        if self.settings is not None:
            return vllm_command(
                model,
                flags,
                settings=dict(self.settings),
                num_speculative_tokens=self.num_tokens,
                draft_model=self.draft_model,
                host=HOST,
                port=port,
                environment=environment,
            )
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        command += ["--host", HOST, "--port", str(port), *flags]
        if self.method:
            speculation = {"method": self.method, "num_speculative_tokens": self.num_tokens, **self.options}
            command += ["--speculative-config", json.dumps(speculation)]
        return command


NONE = Speculator("none")
SUFFIX = Speculator("suffix", method="suffix")
NGRAM = Speculator("ngram", num_tokens=DEFAULT_MAX_DRAFT, method="ngram", options={"prompt_lookup_max": 4})
OURS = Speculator("agentspec", num_tokens=DEFAULT_MAX_DRAFT, settings={})
# drafts whatever a step costs: counts do not depend on the machine
OURS_FIXED = Speculator("agentspec", num_tokens=DEFAULT_MAX_DRAFT, settings={"price": 0.05})


@dataclass(frozen=True, slots=True)
class Engine:
    """A vLLM configuration that all drafters share.

    Attributes:
        model: a checkpoint's folder or name.
        flags: further vLLM flags.
        environment: variables of the process.
        none: vLLM without speculation, at its best.
        python: the interpreter of vLLM's environment.
    """

    model: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    none: Speculator = NONE
    python: str = sys.executable

    @contextmanager
    def serving(self, speculator: Speculator, log_dir: Path, *flags: str) -> Iterator[Server]:
        """Run a server with this speculator and, after all others, these flags."""
        port = free_port()
        environment = {**os.environ, **self.environment, **speculator.environment}
        command = speculator.command(self.model, [*self.flags, *flags], port, environment)
        command[0] = self.python
        log = log_dir / f"vllm-{speculator.name.replace(' ', '-')}.log"
        plugin = vllm_environment(settings=speculator.settings, command=command)
        with Server.running(command, port, log, {**environment, **plugin}) as server:
            yield server


def bundled_on_runner_v2() -> Engine:
    """Return the bundled model on the CPU under vLLM's model runner V2, asynchronously scheduled.

    Kernels are interpreted: counts mean something, times do not.

    Raises:
        ConfigError: the environment for it is missing.
    """
    v1 = bundled_on_cpu()
    python = Path(sys.prefix).parent / V2_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            f"model runner V2 needs an environment of its own: make {V2_ENVIRONMENT}/.installed"
        )
    variables = {RUNNER_VARIABLE: "1", "TRITON_INTERPRET": "1"}
    return replace(
        v1,
        flags=(*v1.flags, "--async-scheduling"),
        environment={**v1.environment, **variables},
        python=str(python),
    )


def bundled_on_cpu() -> Engine:
    """Return the bundled model on the CPU, exact enough that rounding does not decide greedy choices."""
    flags = ("--served-model-name", MODEL_NAME, "--dtype", "float32", "--enforce-eager")
    return Engine(
        str(bundled_model_dir()),
        (*flags, "--max-model-len", str(MAX_MODEL_LEN)),
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    )
