"""``agentspec serve``: where gateway, engine and forest are put together.

Imports are lazy: only the embedded engine loads torch.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import socket
from typing import TYPE_CHECKING

from agentspec import DraftConfig, ForestConfig
from agentspec.commands import option_types
from agentspec.errors import ConfigError
from agentspec.extras import needed

if TYPE_CHECKING:
    from agentspec.forest import Forest
    from agentspec.gateway import ApiKeys, Upstream

API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"
EXAMPLES = """\
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``agentspec serve``."""
    parser.description = "Start the OpenAI-compatible gateway: with an engine of its own, or before another."
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run_serve)
    _add_server_options(parser.add_argument_group("server"))
    _add_engine_options(parser.add_argument_group("embedded engine (the default)"))
    _add_proxy_options(parser.add_argument_group("another engine"))


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    group.add_argument(
        "--port", type=option_types.port, default=8000, help="port, 0 = any free one (%(default)s)"
    )
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
        type=option_types.seconds,
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
        type=option_types.price,
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
        "--engine-timeout-s",
        type=option_types.seconds,
        default=600.0,
        metavar="S",
        help="longest silence (%(default)s)",
    )


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

    with needed("engine", hint=", or use --engine-url for an engine elsewhere"):
        from agentspec.engine import EngineConfig, TorchEngine
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
