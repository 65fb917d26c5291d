"""The ``agentspec`` command. The one place where the parts are put together.

Imports are lazy: ``agentspec --version`` loads no server, and only the embedded engine loads torch.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec import DraftConfig, ForestConfig, __version__
from agentspec.errors import AgentSpecError, ConfigError

if TYPE_CHECKING:
    from agentspec.forest import Forest
    from agentspec.gateway import ApiKeys, Upstream

API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"
MAX_PORT = 65535
MAX_BENCH_TOKENS = 10**12
MAX_BUDGET_MB = 1 << 20
ENGINE_PACKAGES = ("torch", "tokenizers", "safetensors", "jinja2", "llguidance")
BENCH_PACKAGES = ("mistral_common", "rich", "matplotlib")
REPLAY_METHODS = (
    "learned",
    "forest",
    "paper-stage",
    "paper-shared",
    "paper-request",
    "paper-global",
    "pld",
    "llma",
    "rest",
    "recycling",
    "sam",
    "arctic",
)
PAPER_SECTIONS = ("fig2", "fig4", "fig7", "fig8", "fig9", "table1")
BENCH_SCOPES = ("stage", "tenant", "forest", "router", "popular")

SERVE_EXAMPLES = """\
examples:
  agentspec serve                                      the bundled model on this machine
  agentspec serve --model ./Qwen3-0.6B --device cuda   a checkpoint of your own
  agentspec serve --engine-url http://gpu-box:8000     in front of a running vLLM
  agentspec serve --host 0.0.0.0 --api-key s3cret=acme for others, by key

then, from any OpenAI client:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'X-AgentSpec-Stage: my_agent/plan' \\
    -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "hello"}]}'
  or with no header at all: base_url="http://127.0.0.1:8000/stages/my_agent/plan/v1"
"""

BENCH_CORE_DESCRIPTION = """\
Measure the suffix core against a peer, both doing the same work in turn on recorded model outputs: time to
append and to remove, memory, whole decode steps, indexing of prompts. Prints a table, then one line of JSON.
"""

BENCH_CORE_EXAMPLES = """\
examples:
  agentspec bench core --traces DIR                    some minutes
  agentspec bench core --traces DIR --quick            less data, under a minute
  agentspec bench core --traces DIR --json out/core.json --plot out/core.png

DIR holds *.jsonl.gz files: a model call per line, with the keys session, prompt and response (texts). The
responses must come to about 3 million tokens, with --quick to 700,000; so must the prompts.

peers:
  arctic   arctic-inference 0.3.0, what vLLM's method "suffix" uses; `make bench-peer` builds it, GPU or not.
           Where it is missing, our own figures are still measured and ratios are null.
  none     our own figures only
"""

BENCH_CHURN_DESCRIPTION = """\
Send many more tokens through the forest than its budget holds, as requests that come and go: does memory
stay within the budget, does any call take long, do the oldest outputs go first? Prints a table, then one line
of JSON.
"""

BENCH_CHURN_EXAMPLES = """\
examples:
  agentspec bench churn --traces DIR                   20 million tokens for a scope, a quarter of an hour
  agentspec bench churn --traces DIR --quick           less data and a smaller budget, some minutes
  agentspec bench churn --traces DIR --scope tenant --tokens 5e6 --budget-mb 64

DIR holds *.jsonl.gz files: a model call per line, with the key response (a text); any number will do.

scopes, what the budget is for:
  stage    the tree of one stage, no other being kept
  tenant   all trees of a tenant: five stages, their workflow, the tenant; and its live requests
  forest   all trees of three such tenants
  router   a tenant; for each long output a hundred of 1 to 3 tokens, then long ones only
  popular  a tenant, most of whose outputs are the same 1,000 tokens; then all of them differ

Every scope is run twice, and of each call the lesser time counts.
"""

BENCH_PAPER_DESCRIPTION = """\
Make the figures of the SuffixDecoding paper again, from recorded calls against a simulated verifier: writes
paper.md, and its plots and all figures into the folder paper beside it.
"""

BENCH_PAPER_EXAMPLES = """\
examples:
  agentspec bench paper --traces DIR                     everything, some ten minutes on 2 cores
  agentspec bench paper --traces DIR --only fig8         one section; the others stay as they are
  agentspec bench paper --traces DIR --limit 50 --docs out

DIR holds the eleven *.jsonl.gz files that the document names, with the lines that `agentspec replay` reads.
"""

BENCH_LOAD_DESCRIPTION = """\
Serve the text-to-SQL example's calls with the embedded engine and the bundled model, 1 to 16 at a time:
without speculation, at fixed prices of a draft token, and at the price that the engine learns from its
steps. All take turns, and outputs are compared. Prints a table, then one line of JSON. Needs the repository:
python -m agentspec bench load
"""

REPLAY_DESCRIPTION = """\
Replay recorded model calls: each method drafts, the record stands for the model that verifies, a response is
learned when it is over. Prints tokens per step, what was drafted and accepted, and what drafting took; for
each file whether speculation is worth it, how predictable its stages are and what they gain; then one line of
JSON with the same by stage, source and match length.
"""

REPLAY_EXAMPLES = """\
examples:
  agentspec replay calls.jsonl                              what drafting would have saved
  agentspec replay calls.jsonl --tokenizer ./Qwen3-0.6B     with the tokenizer of your model
  agentspec replay DIR --method forest --method pld --markdown out/replay.md
  agentspec replay calls.jsonl --sessions 8 --mode tree --max-draft 64
  agentspec replay DIR --plot out/replay.png
  agentspec replay --compare DIR --limit 500 --json out/compare.json --plot out/compare.png

A line of a *.jsonl or *.jsonl.gz file is either a call, {"prompt": TEXT, "response": TEXT}, with session,
stage and task (texts) if known, or a chat in OpenAI's form, {"messages": [...]}: every answer is a call.

methods:
  learned        request, session, stage and workflow trees together, tokens by their chance to be accepted
  forest         request, session, stage, workflow and tenant trees together, as the forest is by default
  paper-stage    SuffixDecoding: the request's tree and one per stage
  paper-shared   SuffixDecoding: the request's tree and one of all outputs
  paper-request  SuffixDecoding: the request's tree alone
  paper-global   SuffixDecoding: one tree per stage alone, without the request's
  pld            prompt look-up, n-grams of 2 to 5 tokens, as vLLM's method ngram
  llma           copies from the prompt alone, behind 2 tokens that match
  rest           a datastore of all outputs, trees of what followed the longest match of up to 16 tokens
  recycling      Token Recycling, with the tokens that followed each one last in place of the model's top 8
  sam            SAM-Decoding alone: what last followed the longest match in the text or in all outputs
  arctic         arctic-inference's suffix cache, what vLLM's method suffix uses; only if asked for

--compare replays each file some thirty times: learned at eleven prices and the paper's rule, as chains and as
trees of 16, 32 and 64 nodes; then learned with a tree per stage and with one tree in equal memory, and beside
a stage that has learned something unrelated. Its table has a bar for each result; where no price draws level
on one data set the result is "not reached", and the bar is not met.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except AgentSpecError as error:
        print(f"agentspec: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="agentspec", description="Per-stage suffix-tree speculative decoding for LLM agents."
    )
    parser.add_argument("--version", action="version", version=f"agentspec {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the gateway",
        description="Start the OpenAI-compatible gateway: with an engine of its own, or before another.",
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.set_defaults(run=run_serve)
    _add_server_options(serve.add_argument_group("server"))
    _add_engine_options(serve.add_argument_group("embedded engine (the default)"))
    _add_proxy_options(serve.add_argument_group("another engine"))
    bench = commands.add_parser("bench", help="measure", description="Measure what this project promises.")
    benchmarks = bench.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    _add_bench_core(benchmarks)
    _add_bench_churn(benchmarks)
    _add_bench_paper(benchmarks)
    _add_bench_load(benchmarks)
    _add_replay(commands)
    return parser


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    group.add_argument("--port", type=_port, default=8000, help="port, 0 = any free one (%(default)s)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY[=TENANT]",
        help=f"let in only requests with this key; repeatable; also ${API_KEYS_VARIABLE}, comma-separated",
    )
    group.add_argument("--allow-open", action="store_true", help="allow a public address without any key")
    group.add_argument(
        "--grace-s",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds that requests under way get to finish at shutdown (%(default)s)",
    )
    group.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="DIR", help="Hugging Face checkpoint (default: the bundled model)")
    group.add_argument(
        "--served-model-name", metavar="NAME", help="its name in /v1/models (default: DIR's name)"
    )
    group.add_argument("--draft", choices=("chain", "tree", "off"), default="tree", help="(%(default)s)")
    group.add_argument(
        "--max-draft", type=int, default=16, metavar="N", help="tokens per draft (%(default)s)"
    )
    group.add_argument(
        "--rule",
        choices=("learned", "paper"),
        default="learned",
        help="how drafts are chosen, see docs/drafting.md (%(default)s)",
    )
    group.add_argument(
        "--price",
        type=_price,
        metavar="P",
        help="draft no token whose chance of being accepted is below P, 0 to 1 (default: by what steps take)",
    )
    group.add_argument("--slots", type=int, default=16, metavar="N", help="requests at a time (%(default)s)")
    group.add_argument("--max-model-len", type=int, metavar="N", help="context (default: the model's)")
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch (bundled model: 1)")
    group.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="(default: by device)")
    group.add_argument(
        "--stage-budget-mb",
        type=int,
        default=64,
        metavar="N",
        help="memory of one stage's tree (%(default)s)",
    )


def _add_proxy_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--engine-url", metavar="URL", help="forward to this OpenAI-compatible server")
    group.add_argument(
        "--xargs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tell the engine the stage in the body's vllm_xargs; some servers refuse unknown fields",
    )
    group.add_argument(
        "--engine-timeout-s", type=_seconds, default=600.0, metavar="S", help="longest silence (%(default)s)"
    )


def _add_bench_core(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    core = benchmarks.add_parser(
        "core",
        help="the suffix trees: time and memory",
        description=BENCH_CORE_DESCRIPTION,
        epilog=BENCH_CORE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    core.set_defaults(run=run_bench_core)
    core.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    core.add_argument("--peer", choices=("arctic", "none"), default="arctic", help="(%(default)s)")
    core.add_argument("--quick", action="store_true", help="the same figures from less data")
    core.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    core.add_argument("--plot", type=Path, metavar="PNG", help="also draw decode steps against live requests")


def _add_bench_churn(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    churn = benchmarks.add_parser(
        "churn",
        help="memory and calls when much more is learned than fits",
        description=BENCH_CHURN_DESCRIPTION,
        epilog=BENCH_CHURN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    churn.set_defaults(run=run_bench_churn)
    churn.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    churn.add_argument("--scope", choices=(*BENCH_SCOPES, "all"), default="all", help="(%(default)s)")
    churn.add_argument(
        "--tokens", type=_tokens, metavar="N", help="of each scope (20e6, router, popular: 4e6; --quick: 3e6)"
    )
    churn.add_argument(
        "--budget-mb", type=_budget_mb, metavar="N", help="MiB (128, router, popular: 64; --quick: 64)"
    )
    churn.add_argument("--quick", action="store_true", help="the same figures from less data")
    churn.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    churn.add_argument("--plot", type=Path, metavar="PNG", help="also draw memory against tokens")


def _add_bench_paper(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    paper = benchmarks.add_parser(
        "paper",
        help="the figures of the SuffixDecoding paper, again",
        description=BENCH_PAPER_DESCRIPTION,
        epilog=BENCH_PAPER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    paper.set_defaults(run=run_bench_paper)
    paper.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    paper.add_argument(
        "--docs", type=Path, default=Path("docs"), metavar="DIR", help="where to write (%(default)s)"
    )
    paper.add_argument(
        "--only", action="append", default=[], choices=PAPER_SECTIONS, help="repeatable (default: all)"
    )
    paper.add_argument("--limit", type=_count, metavar="N", help="calls of each file, at most")
    paper.add_argument(
        "--jobs", type=_count, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)"
    )


def _add_bench_load(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    load = benchmarks.add_parser(
        "load",
        help="the embedded engine under load, by the price of a draft token",
        description=BENCH_LOAD_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.set_defaults(run=run_bench_load)
    load.add_argument(
        "--questions", type=_count, default=8, metavar="N", help="of seven calls each, at least (%(default)s)"
    )
    load.add_argument(
        "--rounds", type=_count, default=5, metavar="N", help="each from nothing; medians count (%(default)s)"
    )
    load.add_argument(
        "--clients",
        type=_counts,
        default=(1, 2, 4, 8, 16),
        metavar="N,...",
        help="requests at a time (1,2,4,8,16)",
    )
    load.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")


def run_serve(args: argparse.Namespace) -> int:
    """``agentspec serve``."""
    from agentspec.gateway import ApiKeys, Drain, create_app, serve

    _start_logging(args.log_level)
    keys = ApiKeys.parse([*args.api_key, *_split(os.environ.get(API_KEYS_VARIABLE, ""))])
    _check_exposure(args.host, bool(keys), args.allow_open)
    with _bind(args.host, args.port) as bound:  # before the model is loaded: a taken port fails at once
        upstream, name = _proxy(args, keys) if args.engine_url else _embedded(args)
        url = f"http://{_in_url(args.host)}:{bound.getsockname()[1]}/v1"
        drain = Drain()
        serve(
            create_app(upstream, keys=keys, drain=drain),
            bound,
            drain,
            grace_s=args.grace_s,
            on_ready=lambda: print(f"serving {name} on {url}", flush=True),
        )
    return 0


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay",
        help="what drafting would have saved on recorded calls",
        description=REPLAY_DESCRIPTION,
        epilog=REPLAY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.set_defaults(run=run_replay)
    replay.add_argument(
        "input", type=Path, nargs="+", metavar="FILE", help="recorded calls, or a folder of such files"
    )
    _add_selection_options(replay.add_argument_group("which calls"))
    _add_method_options(replay.add_argument_group("what drafts"))
    _add_report_options(replay.add_argument_group("what is written"))


def _add_selection_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        default="tekken",
        metavar="DIR",
        help="folder with a tokenizer.json (default: Tekken, packaged)",
    )
    group.add_argument(
        "--sessions", type=_count, default=1, metavar="N", help="sessions at the same time (%(default)s)"
    )
    group.add_argument("--limit", type=_count, metavar="N", help="calls of each file, at most")
    group.add_argument(
        "--half",
        choices=("first", "second", "both"),
        help="one half of the tasks only: tune on one, report on the other (both; --compare: second)",
    )
    group.add_argument(
        "--jobs",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes, one per file, with --compare one per replay (%(default)s)",
    )


def _add_method_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--compare",
        action="store_true",
        help="the learned rule against the paper's at matched budgets, each with settings of its own",
    )
    group.add_argument(
        "--method", action="append", choices=REPLAY_METHODS, help="repeatable (default: all but arctic)"
    )
    group.add_argument("--mode", choices=("chain", "tree"), default="chain", help="(%(default)s)")
    group.add_argument(
        "--max-draft", type=_count, default=32, metavar="N", help="tokens per draft (%(default)s)"
    )
    group.add_argument(
        "--alpha",
        type=float,
        default=4.0,
        metavar="X",
        help="drafts of at most X times the match (%(default)s)",
    )
    group.add_argument(
        "--min-prob",
        type=float,
        default=0.1,
        metavar="P",
        help="less probable tokens are not drafted (%(default)s)",
    )


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    group.add_argument("--markdown", type=Path, metavar="FILE", help="also write tables by stage")
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="also draw, as .png or .svg: speed, drafts and where accepted tokens came from; with --compare "
        "accepted against drafted tokens by data set, and calibration",
    )


def run_replay(args: argparse.Namespace) -> int:
    """``agentspec replay``."""
    with _bench_packages():
        from agentspec.benchmarks.replay.jobs import Plan, Selection
        from agentspec.benchmarks.replay.methods import Rule
        from agentspec.benchmarks.replay.run import HALVES, Outputs, run, run_compare

        rule = Rule(args.mode, args.max_draft, args.alpha, args.min_prob)
        selection = Selection(args.tokenizer, args.sessions, args.limit)
        outputs = Outputs(args.json, args.markdown, args.plot)
        if args.compare:
            if args.method or rule != Rule():
                raise ConfigError("--compare has methods, modes, sizes and prices of its own: give it none")
            halves = HALVES if args.half == "both" else (args.half or "second",)
            return run_compare(args.input, selection, halves, args.jobs, outputs)
        if args.half in HALVES:
            selection = replace(selection, half=HALVES.index(args.half))
        methods = tuple(args.method or (name for name in REPLAY_METHODS if name != "arctic"))
        return run(args.input, Plan(methods, rule, selection), args.jobs, outputs)


def run_bench_core(args: argparse.Namespace) -> int:
    """``agentspec bench core``."""
    with _bench_packages():
        from agentspec.benchmarks.core.run import run
        from agentspec.benchmarks.core.sizes import FULL, QUICK

        return run(args.traces, args.peer, QUICK if args.quick else FULL, args.json, args.plot)


def run_bench_churn(args: argparse.Namespace) -> int:
    """``agentspec bench churn``."""
    with _bench_packages():
        from agentspec.benchmarks.churn.run import run
        from agentspec.benchmarks.churn.sizes import FULL, QUICK

        chosen = {"tokens": args.tokens, "budget_mb": args.budget_mb}
        chosen |= {f"hard_{name}": value for name, value in chosen.items()}
        given = {name: value for name, value in chosen.items() if value is not None}
        sizes = replace(QUICK if args.quick else FULL, **given)
        scopes = BENCH_SCOPES if args.scope == "all" else (args.scope,)
        return run(args.traces, scopes, sizes, args.json, args.plot)


def run_bench_paper(args: argparse.Namespace) -> int:
    """``agentspec bench paper``."""
    with _bench_packages():
        from agentspec.benchmarks.paper.run import run

        return run(args.traces, args.docs, args.only, args.limit, args.jobs)


def run_bench_load(args: argparse.Namespace) -> int:
    """``agentspec bench load``."""
    with _bench_packages(BENCH_PACKAGES + ENGINE_PACKAGES):
        from agentspec.benchmarks.load.measure import Sizes
        from agentspec.benchmarks.load.run import run

        return run(Sizes(args.questions, args.rounds, args.clients), args.json)


@contextmanager
def _bench_packages(packages: Sequence[str] = BENCH_PACKAGES) -> Iterator[None]:
    """Say what to install if something that only benchmarks need is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        extra = "engine" if error.name in ENGINE_PACKAGES else "bench"
        raise ConfigError(f"this needs {error.name}: pip install 'agentspec[{extra}]'") from None


def _start_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if level != "debug":  # these libraries' running commentary is not ours
        for name in ("uvicorn", "httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _bind(host: str, port: int) -> socket.socket:
    from agentspec.gateway.server import bind

    try:
        return bind(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can be so
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't listen on {_in_url(host)}:{port}: {reason}") from None


def _embedded(args: argparse.Namespace) -> tuple[Upstream, str]:
    """The engine in this process, and the name it serves."""
    from agentspec.gateway import EmbeddedUpstream

    try:
        from agentspec.engine import EngineConfig, TorchEngine
    except ModuleNotFoundError as error:
        if error.name not in ENGINE_PACKAGES:
            raise
        raise ConfigError(
            f"the embedded engine needs {error.name}: pip install 'agentspec[engine]', "
            "or use --engine-url for an engine elsewhere"
        ) from None
    from agentspec.models import BUNDLED_MODEL, bundled_model_dir

    config = EngineConfig(
        model_path=args.model or bundled_model_dir(),
        served_name=args.served_model_name or ("" if args.model else BUNDLED_MODEL),
        device=args.device,
        dtype=args.dtype,
        num_slots=args.slots,
        max_model_len=args.max_model_len,
        draft=_drafts(args),
        price=args.price,
        # the bundled model's products are too small to share: a second thread makes every step slower
        threads=args.threads or (None if args.model else 1),
    )
    forest = None if config.draft.is_off else _forest(args)
    try:
        engine = TorchEngine(config, forest)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the engine can't start on device {args.device!r}: {reason}") from error
    return EmbeddedUpstream(engine), engine.model.name


def _drafts(args: argparse.Namespace) -> DraftConfig:
    """As far as the price allows; the paper's rule on good evidence only."""
    return DraftConfig(
        mode=args.draft, max_tokens=args.max_draft, rule=args.rule, alpha=32, min_prob=0, doubt=1
    )


def _forest(args: argparse.Namespace) -> Forest:
    from agentspec.forest import Forest

    return Forest(ForestConfig(stage_limit_bytes=args.stage_budget_mb << 20))


def _proxy(args: argparse.Namespace, keys: ApiKeys) -> tuple[Upstream, str]:
    """The engine behind a URL, and that URL."""
    from agentspec.gateway import ProxySettings, ProxyUpstream

    settings = ProxySettings(
        url=args.engine_url,
        api_key=os.environ.get(ENGINE_API_KEY_VARIABLE),
        forwards_authorization=not keys,  # else it is a key of ours
        sends_xargs=args.xargs,
        read_timeout_s=args.engine_timeout_s,
    )
    return ProxyUpstream(settings), args.engine_url


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, not {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price <= 1:
        raise argparse.ArgumentTypeError(f"a price is a number between 0 and 1, not {text!r}")
    return price


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a positive number of seconds, not {text!r}")
    return seconds


def _tokens(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number <= MAX_BENCH_TOKENS:
        raise argparse.ArgumentTypeError(f"a number of tokens is positive, like 20e6, not {text!r}")
    return int(number)


def _budget_mb(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_BUDGET_MB):
        raise argparse.ArgumentTypeError(f"a budget is a whole number of MiB, at least 1, not {text!r}")
    return int(text)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_exposure(host: str, has_keys: bool, allow_open: bool) -> None:
    if not (has_keys or allow_open or _is_loopback(host)):
        raise ConfigError(
            f"{host!r} can be reached from other machines and there is no API key: "
            "give --api-key, or --allow-open if that is meant"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
