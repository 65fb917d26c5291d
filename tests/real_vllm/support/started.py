"""What vLLM's own parser and configuration make of a command line, without an engine."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from types import SimpleNamespace
from typing import Any

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.launch import vllm_command
from agentspec.vllm_plugin.settings import PluginSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentspec.vllm_plugin.worker import AgentSpecWorker

SMALL = ("--dtype", "float32", "--max-model-len", "512", "--enforce-eager")
SPECULATIVE = ("speculative_config", "spec_method", "spec_model", "spec_tokens")


def parsed(arguments: Sequence[str] = ()) -> Namespace | None:
    """Return what vLLM makes of the plugin's command with these arguments added; None if it refuses them."""
    command = vllm_command(str(bundled_model_dir()), SMALL)
    parser = make_arg_parser(FlexibleArgumentParser())
    try:
        with redirect_stderr(StringIO()):
            return parser.parse_args([*command[command.index("-m") + 2 :], *arguments])
    except (SystemExit, ValueError):
        return None


def speculative(arguments: Namespace | None) -> dict[str, Any] | None:
    """Return the speculative settings among parsed arguments."""
    return arguments and {name: getattr(arguments, name) for name in SPECULATIVE}


def check(arguments: Namespace, changes: Mapping[str, Any]) -> PluginSettings:
    """Run the worker's check of a server started by hand, with these speculative settings changed."""
    arguments.speculative_config = {**arguments.speculative_config, **changes}
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    worker = SimpleNamespace(vllm_config=config, use_v2_model_runner=config.use_v2_model_runner)
    return AgentSpecWorker._check(worker)
