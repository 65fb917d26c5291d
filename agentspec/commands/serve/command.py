"""``agentspec serve``: its options, the chosen engine, and the server around it.

Imports are lazy: only the chosen engine's modules are loaded.
"""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.commands import option_types
from agentspec.commands.logs import start_logging
from agentspec.distribution import DOCUMENTS
from agentspec.vllm_plugin.settings import MOST_MB
from agentspec.wire import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from agentspec.commands.serve.options import ServeOptions
    from agentspec.commands.serve.plan import Plan
    from agentspec.gateway import Fleet, Recorder, RuntimeConfig, Upstream
    from agentspec.gateway.settings import Settings
    from agentspec.gateway.sharing.service import Sharing

API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
ADMIN_KEY_VARIABLE = "AGENTSPEC_ADMIN_KEY"
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
        "gateway, a small engine of its own, or a gateway before an engine that runs already. Options that "
        "are not listed here are vLLM's and are passed on to it."
    )
    parser.epilog = EXAMPLES
    parser.allow_abbrev = False  # --max-model may be vLLM's
    parser.set_defaults(run=run_serve, passes_on_unknown=True)
    _add_server_options(parser.add_argument_group("server"))
    _add_engine_options(parser.add_argument_group("engine: vLLM or the embedded one"))
    _add_draft_options(parser.add_argument_group("drafting, in both"))
    _add_corpus_options(parser.add_argument_group("sharing, in both"))
    _add_torch_options(parser.add_argument_group("embedded engine only (PyTorch)"))
    _add_vllm_options(parser.add_argument_group("vLLM only, with all options of vLLM's own"))
    _add_proxy_options(parser.add_argument_group("an engine that runs already"))


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="agentspec.yaml; options and environment override it"
    )
    group.add_argument("--dry-run", action="store_true", help="check all settings, show them, and end")
    group.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=option_types.port, help="0 = any free one (default: 8000)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY[=TENANT]",
        help=f"let in only requests with this key; repeatable; also ${API_KEYS_VARIABLE}, comma-separated",
    )
    group.add_argument(
        "--admin-key",
        default=os.environ.get(ADMIN_KEY_VARIABLE) or None,
        metavar="KEY",
        help=f"the operator's key, for metrics, saving and loading; also ${ADMIN_KEY_VARIABLE}",
    )
    group.add_argument("--allow-open", action="store_true", help="allow a public address without any key")
    group.add_argument(
        "--grace-s",
        type=option_types.seconds,
        metavar="S",
        help="seconds that requests under way get to finish at shutdown (default: 5)",
    )
    group.add_argument(
        "--record",
        metavar="FILE",
        help="append every call, prompt and answer, to this file, for --engine replay",
    )
    group.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="(default: info)")


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine",
        choices=("auto", "torch", "vllm", "replay"),
        help="auto: vLLM if --model is given and vLLM is installed, else the embedded engine; replay: the "
        "embedded engine with the answers of --trace (default: auto)",
    )
    group.add_argument(
        "--model", metavar="MODEL", help="folder of a checkpoint; for vLLM also a name (default: bundled)"
    )
    group.add_argument("--served-model-name", metavar="NAME", help="its name in /v1/models (default: MODEL)")
    group.add_argument(
        "--max-model-len", type=option_types.count, metavar="N", help="context (default: the model's)"
    )
    group.add_argument("--dtype", metavar="TYPE", help="float32, bfloat16, float16 (default: by device)")


def _add_draft_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-draft",
        type=option_types.between(0, MAX_DRAFT_TOKENS),
        metavar="N",
        help="tokens per draft (embedded: 16, vLLM: 15)",
    )
    group.add_argument(
        "--draft-model",
        metavar="DIR",
        help="an EAGLE-3 head or a smaller model that drafts together with the trees; Medusa heads with the "
        f"embedded engine; 'mtp': heads in the model's own checkpoint. See {DOCUMENTS}/hybrid.md",
    )
    group.add_argument(
        "--rule",
        choices=("learned", "paper"),
        help=f"how drafts are chosen, see {DOCUMENTS}/drafting.md (default: learned)",
    )
    group.add_argument(
        "--price",
        type=option_types.price,
        metavar="P",
        help="draft no token with a probability of acceptance below P, 0 to 1 (default: by what steps take)",
    )
    group.add_argument(
        "--stage-budget-mb",
        type=option_types.between(1, MOST_MB),
        metavar="N",
        help="memory of one stage's tree (default: 64)",
    )
    group.add_argument(
        "--forest-file",
        metavar="FILE",
        help="load the trees from this file, and save them to it periodically",
    )
    group.add_argument(
        "--forest-folder",
        metavar="DIR",
        help="operators may save to and load from files in here (default: the folder of --forest-file)",
    )
    group.add_argument(
        "--strict-forest",
        action="store_true",
        help="refuse to start with a forest file that is damaged, too new or of another model's vocabulary "
        "(default: move it aside and begin anew)",
    )
    group.add_argument(
        "--save-every-s",
        type=option_types.seconds,
        metavar="S",
        help="seconds between two saves; it also saves at shutdown (default: 500 times what the last save "
        "took, but 10 to 300)",
    )


def _add_corpus_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--corpus",
        metavar="PLACE",
        help="share outputs with other engines, and keep them between runs: a folder, for the engines of "
        "this machine, or redis://HOST:PORT/DB, for a fleet; $AGENTSPEC_CORPUS_KEY encrypts it; see "
        f"{DOCUMENTS}/fleet.md",
    )
    group.add_argument(
        "--corpus-snapshots",
        metavar="URL",
        help="keep the snapshots of the corpus in an object store: s3://BUCKET/PREFIX, gs://..., az://... or "
        "file:///FOLDER; credentials are in the environment (default: in the corpus)",
    )
    group.add_argument(
        "--corpus-stages",
        type=option_types.reaches,
        metavar="STAGE=none|host|fleet,...",
        help="how far the outputs of a stage, and of all below it, travel: none = they stay in the engine, "
        "host = on this machine (default: fleet)",
    )
    group.add_argument(
        "--corpus-host",
        metavar="DIR",
        help="with a corpus in Redis: the folder for stages of the reach host, for the engines of this "
        "machine (default: these outputs stay in the engine)",
    )


def _add_torch_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--draft", choices=("chain", "tree", "off"), help="(default: tree)")
    group.add_argument(
        "--hybrid-threshold",
        type=option_types.amount,
        metavar="N",
        help="expected accepted tokens above which the trees draft, not the draft model (default: by what "
        "both have been worth)",
    )
    group.add_argument(
        "--slots", type=option_types.count, metavar="N", help="requests at a time (default: 16)"
    )
    group.add_argument(
        "--kv-cache-mb",
        type=option_types.between(1, MOST_MB),
        metavar="N",
        help="memory of the tokens of all requests, which wait for it (default: half of what is free beside "
        "the weights)",
    )
    group.add_argument(
        "--threads", type=option_types.count, metavar="N", help="CPU threads of torch (bundled model: 1)"
    )
    group.add_argument("--device", type=option_types.device, help="cpu or cuda (default: cpu)")
    group.add_argument(
        "--trace", metavar="FILE", help="with --engine replay: recorded calls, *.jsonl or *.jsonl.gz"
    )


def _add_vllm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--zero-hop",
        action="store_true",
        help="no gateway: vLLM's own server listens on --host and --port and tags requests itself",
    )
    group.add_argument(
        "--engine-only",
        action="store_true",
        help="no gateway: vLLM's own server listens on --host and --port, for gateways elsewhere, which tag "
        "requests; its key is $AGENTSPEC_ENGINE_API_KEY, that of its plugin $AGENTSPEC_CONTROL_TOKEN",
    )
    group.add_argument(
        "--engine-port", type=option_types.port, metavar="N", help="vLLM's, on loopback (default: a free one)"
    )
    group.add_argument(
        "--engine-start-timeout-s",
        type=option_types.seconds,
        metavar="S",
        help="seconds until vLLM must be ready (default: 900)",
    )


def _add_proxy_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--engine-url", metavar="URL", help="forward to this OpenAI-compatible server")
    group.add_argument(
        "--control-token",
        metavar="TOKEN",
        help="of its plugin's control channel; also $AGENTSPEC_CONTROL_TOKEN",
    )
    group.add_argument(
        "--xargs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send the stage to the engine in the body's vllm_xargs; some servers refuse unknown fields",
    )
    group.add_argument(
        "--engine-timeout-s",
        type=option_types.seconds,
        metavar="S",
        help="longest silence (default: 600)",
    )


def run_serve(args: argparse.Namespace) -> int:
    """Run ``agentspec serve``."""
    from agentspec.commands.serve.options import ServeOptions
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
    from agentspec.gateway.reload import Reload

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
    from agentspec.gateway.upstreams.probe import probe_engine

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
