"""``agentspec serve``: the chosen engine, and the server around it.

Imports are lazy: only the chosen engine's modules are loaded.
"""

from __future__ import annotations

import argparse
import logging
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.commands.logs import start_logging
from agentspec.commands.serve.options import ServeOptions, add_flags
from agentspec.distribution import DOCUMENTS

if TYPE_CHECKING:
    from agentspec.commands.serve.plan import Plan
    from agentspec.gateway import Fleet, Recorder, RuntimeConfig, Upstream
    from agentspec.gateway.settings import Settings
    from agentspec.gateway.sharing.service import Sharing

EXAMPLES = (
    """\
examples:
  agentspec serve                                      the bundled model on this machine
  agentspec serve --model Qwen/Qwen3-8B --max-num-seqs 64     vLLM, with any of its options
  agentspec serve --model Qwen/Qwen3-8B --zero-hop     the same without a gateway, inside vLLM's own server
  agentspec serve --model Qwen/Qwen3-8B --engine-only  an engine for gateways elsewhere
  agentspec serve --model ./Qwen3-0.6B --engine torch --device cuda   the embedded engine
  agentspec serve --engine replay --trace calls.jsonl  recorded answers, in real steps of the embedded engine
  agentspec serve --engine-url http://gpu-box:8000     in front of a running vLLM
  agentspec serve --host 0.0.0.0 --api-key s3cret=acme for others, by key
  agentspec serve --config agentspec.yaml              all of that, and several engines, from a file

then, from any OpenAI client:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'X-AgentSpec-Stage: agentic_sql/extract' \\
    -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Question: How many orders are there?"}], "temperature": 0}'
  or with no header at all: base_url="http://127.0.0.1:8000/stages/agentic_sql/extract/v1"
  (the bundled model answers {"kind": "count", "table": "orders", ...}; it knows questions like this one only)
"""
    f"""
{DOCUMENTS}/vllm.md says more about vLLM;
`agentspec doctor` checks an installation.
"""
)

logger = logging.getLogger("agentspec")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec serve``."""
    parser.description = (
        "Start an OpenAI-compatible server that drafts per stage: vLLM with the forest in it behind a "
        "gateway, a small engine of its own, or a gateway before an engine that runs already. Flags that are "
        "neither here nor in --help-all are vLLM's and are passed on to it."
    )
    parser.epilog = EXAMPLES
    parser.allow_abbrev = False  # --max-model may be vLLM's
    parser.set_defaults(run=run_serve, passes_on_unknown=True)
    add_flags(parser)


def run_serve(args: argparse.Namespace) -> int:
    """Run ``agentspec serve``."""
    from agentspec.commands.serve.plan import plan_of
    from agentspec.commands.serve.settings import read_settings, runtime_config_of, sharing_of

    options = ServeOptions.of(args)
    settings = read_settings(options)
    sharing = sharing_of(settings.sharing)
    runtime = runtime_config_of(settings, options, sharing=sharing)
    plan = plan_of(options, settings, runtime)
    if options.is_dry_run:
        print(plan.shown(), end="")
        return 0
    start_logging(settings.server.log_level, settings.server.log_format)
    logger.info("the engine is %s", plan.choice)
    if settings.engine.zero_hop or settings.engine.engine_only:
        _serve_without_gateway(options, settings)
    else:
        _serve_gateway(options, plan, sharing)
    return 0


def _serve_gateway(options: ServeOptions, plan: Plan, sharing: Sharing | None) -> None:
    from agentspec.commands.serve.plan import listening_socket
    from agentspec.commands.serve.reload import RunningSettings
    from agentspec.commands.serve.settings import discovery_of, tracing_of
    from agentspec.gateway import EngineSupervisor, GracefulShutdown, create_app, serve
    from agentspec.gateway.config_file import Reload

    settings, runtime = plan.settings, plan.runtime
    server, tracing = settings.server, tracing_of(settings.tracing)
    with listening_socket(
        server.host, server.port
    ) as bound:  # before the model is loaded: a taken port fails immediately
        process: EngineSupervisor | None = None
        upstream: Upstream
        keeping: AbstractContextManager[object] = nullcontext()
        if plan.choice.engine == "vllm":
            from agentspec.commands.serve.vllm_engine import behind_gateway

            upstream, name, process = behind_gateway(options, settings, runtime)
        elif plan.embedded is not None:
            from agentspec.commands.serve.torch_engine import embedded

            engine = embedded(plan.embedded)
            upstream, name, keeping = engine.upstream, engine.name, engine.lifetime
        else:
            upstream, name = _running(settings, runtime)
        running = RunningSettings(options, settings, upstream, runtime) if options.config else None
        shutdown = GracefulShutdown()
        discovery = discovery_of(settings)
        with keeping, closing(tracing) if tracing else nullcontext(), _recording(server.record) as recorder:
            serve(
                create_app(
                    upstream,
                    runtime=runtime,
                    shutdown=shutdown,
                    discovery=discovery,
                    tracing=tracing,
                    recorder=recorder,
                    sharing=sharing,
                ),
                bound,
                shutdown,
                grace_s=server.grace_s,
                on_ready=lambda: _say_ready(name, server.host, bound.getsockname()[1]),
                engine=process,
                reload=Reload(options.config, running.read, running.salvage)
                if options.config and running
                else None,
                runtime=runtime,
            )


def _recording(path: str | None) -> AbstractContextManager[Recorder | None]:
    """Return the recorder of calls, which the context closes; None without a path."""
    if path is None:
        return nullcontext()
    from agentspec.gateway import Recorder

    logger.warning("every prompt and answer is written to %s", path)
    return closing(Recorder(Path(path)))


def _running(settings: Settings, runtime: RuntimeConfig) -> tuple[Fleet, str]:
    """Return already running engines and their URLs. Logs for each engine if it has our plugin."""
    from agentspec.commands.serve.settings import fleet_of
    from agentspec.gateway import Fleet
    from agentspec.gateway.upstreams.control_client import probe_engine

    fleet = Fleet(fleet_of(settings, settings.upstreams, runtime))
    for upstream in settings.upstreams:
        logger.info("%s", probe_engine(upstream.root, upstream.control_token))
    return fleet, ", ".join(upstream.url for upstream in settings.upstreams)


def _serve_without_gateway(options: ServeOptions, settings: Settings) -> None:
    from agentspec.commands.serve.plan import listening_socket
    from agentspec.commands.serve.vllm_engine import engine_only, zero_hop
    from agentspec.gateway import run_until_signal

    server = settings.server
    with listening_socket(server.host, server.port) as bound:  # closed again: vLLM listens on it
        port = bound.getsockname()[1]
    if settings.engine.engine_only:
        process, name = engine_only(settings, port)
    else:
        process, name = zero_hop(options, settings, port)
    run_until_signal(process, on_ready=lambda: _say_ready(name, server.host, port))


def _say_ready(name: str, host: str, port: int) -> None:
    from agentspec.commands.serve.plan import in_url

    print(f"serving {name} on http://{in_url(host)}:{port}/v1", flush=True)
