"""``agentspec init``: writes a configuration after a few questions, with all other settings as comments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.prompt import Confirm, Prompt

from agentspec.commands import option_types
from agentspec.commands.key import new_key
from agentspec.commands.settings_file import settings_file
from agentspec.errors import AgentSpecError, ConfigError
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, StageKey

DEFAULT_FILE = Path("agentspec.yaml")
EVERYBODY = "0.0.0.0"
EXAMPLES = """\
examples:
  agentspec init                                       asks, and writes agentspec.yaml
  agentspec init --yes --output /etc/agentspec.yaml    asks nothing: all defaults
"""
ENGINES = {
    "bundled": "the small model in AgentSpec's package",
    "checkpoint": "a checkpoint of yours, on this machine, by the embedded engine",
    "vllm": "vLLM, started here",
    "running": "one or several servers that run already",
}
Engine = Literal["bundled", "checkpoint", "vllm", "running"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the questions. The defaults are those of ``--yes``.

    Attributes:
        model: folder, or for vLLM a name.
        urls: URLs of the running engines.
        sends_xargs: True if they accept unknown fields.
        is_open: True if other machines may connect, with a key.
        tenants: tenants; each gets a key.
        folder: folder for the learned trees and stages; None = nothing is kept after the process ends.
    """

    engine: Engine = "bundled"
    model: str = ""
    device: str = "cpu"
    urls: tuple[str, ...] = ()
    sends_xargs: bool = True
    is_open: bool = False
    port: int = 8000
    tenants: tuple[str, ...] = ()
    folder: Path | None = None
    stage_budget_mb: int = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec init``."""
    parser.description = (
        "Write a commented configuration for `agentspec serve --config` by asking a few questions."
    )
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run_init)
    parser.add_argument("--yes", action="store_true", help="ask nothing and take the defaults")
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_FILE, metavar="FILE", help="where to write it (%(default)s)"
    )


def run_init(args: argparse.Namespace) -> int:
    """Run ``agentspec init``. Keys are printed to standard output, since they are shown only now."""
    console = Console(stderr=True)
    if not args.yes and not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask at: agentspec init --yes takes the defaults")
    try:
        mode = _mode(args.output, args.yes, console)
        answers = Answers() if args.yes else ask(console)
    except EOFError:
        raise ConfigError("the answers ended: nothing was written") from None
    keys = _new_keys(answers.tenants)
    text = written(answers, {owner: digest for owner, (_, digest) in keys.items()})
    _write(args.output, mode, text, answers.folder)
    for owner, (key, _) in keys.items():
        print(f"{'the operator' if owner is None else f'tenant {owner}'}: {key}", flush=True)
    if keys:
        console.print("Keep the keys: the file holds only their digests.", highlight=False)
    console.print(
        f"Wrote {args.output}. Now: agentspec serve --config {args.output}", highlight=False, markup=False
    )
    return 0


def ask(console: Console) -> Answers:
    """Ask for the answers at the terminal. Raises EOFError if the input ends."""
    answers = _ask_engine(console)
    callers = Prompt.ask(
        "Who calls it?", console=console, choices=["this machine", "others"], default="this machine"
    )
    is_open = callers == "others"
    port = _asked(console, "Port", "8000", option_types.port)
    tenants = _asked(
        console,
        "Tenants, each with a key" + ("" if is_open else " (none: no key is needed)"),
        DEFAULT_TENANT if is_open else "",
        lambda text: _tenants(text, is_open),
    )
    folder = _asked(console, "Folder of the forest file (none: no file is kept)", "", _folder)
    answers = replace(answers, is_open=is_open, port=port, tenants=tenants, folder=folder)
    if answers.engine == "running":
        return answers
    return replace(
        answers, stage_budget_mb=_asked(console, "Memory for each stage, MiB", "64", option_types.count)
    )


def written(answers: Answers, digests: Mapping[str | None, str]) -> str:
    """Return the file's text. ``digests``: of each tenant's key, and of the operator's under None."""
    host = EVERYBODY if answers.is_open else "127.0.0.1"
    given: dict[str, Any] = {"server": {"host": host, "port": answers.port}}
    if digests:
        given["admin_key_sha256"] = digests[None]
        given["keys"] = [{"sha256": digests[tenant], "tenant": tenant} for tenant in answers.tenants]
    if answers.engine == "running":
        given["upstreams"] = [{"url": url, "sends_xargs": answers.sends_xargs} for url in answers.urls]
    else:
        given["engine"] = _engine(answers)
    if answers.folder is not None:
        given["discovery"] = {"path": str(answers.folder / "stages.sqlite")}
    return settings_file(given)


def _new_keys(tenants: Sequence[str]) -> dict[str | None, tuple[str, str]]:
    """Return keys and digests of the tenants, and of the operator under None; empty without tenants."""
    owners: tuple[str | None, ...] = (None, *tenants) if tenants else ()
    return {owner: new_key() for owner in owners}


def _engine(answers: Answers) -> dict[str, Any]:
    settings: dict[str, Any] = {"engine": "vllm" if answers.engine == "vllm" else "torch"}
    if answers.model:
        settings["model"] = answers.model
    if answers.engine == "checkpoint":
        settings["device"] = answers.device
    settings["stage_budget_mb"] = answers.stage_budget_mb
    if answers.folder is not None:
        settings["forest_file"] = str(answers.folder / "forest")
    return settings


def _ask_engine(console: Console) -> Answers:
    for name, meaning in ENGINES.items():
        console.print(f"  {name}: {meaning}", highlight=False)
    engine: Any = Prompt.ask("Which engine?", console=console, choices=list(ENGINES), default="bundled")
    answers = Answers(engine=engine)
    if engine == "checkpoint":
        model = _asked(console, "Its folder", "", _checkpoint)
        device = Prompt.ask("Device", console=console, choices=["cpu", "cuda"], default="cpu")
        return replace(answers, model=model, device=device)
    if engine == "vllm":
        return replace(answers, model=_asked(console, "Model, a name or a folder", "", _named))
    if engine == "running":
        urls = _asked(console, "URLs, with spaces between", "http://127.0.0.1:8001", _urls)
        question = "Do they take the field vllm_xargs, as vLLM does?"
        return replace(answers, urls=urls, sends_xargs=Confirm.ask(question, console=console, default=True))
    return answers


def _asked(console: Console, question: str, default: str, read: Callable[[str], Value]) -> Value:
    """Ask until the answer is valid, and return it."""
    while True:
        text = Prompt.ask(question, console=console, default=default, show_default=bool(default))
        try:
            return read(text.strip())
        except (AgentSpecError, argparse.ArgumentTypeError) as error:
            console.print(str(error), style="prompt.invalid", markup=False)


def _named(text: str) -> str:
    if not text:
        raise ConfigError("it needs a name")
    return text


def _checkpoint(text: str) -> str:
    folder = Path(_named(text)).expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{str(folder)!r} is no checkpoint: it has no config.json")
    return str(folder)


def _urls(text: str) -> tuple[str, ...]:
    from agentspec.gateway import UpstreamSettings

    urls = tuple(dict.fromkeys(_named(text).split()))
    for url in urls:
        UpstreamSettings.at(url)  # checks it
    return urls


def _tenants(text: str, is_open: bool) -> tuple[str, ...]:
    tenants = tuple(dict.fromkeys(text.replace(",", " ").split()))
    for tenant in tenants:
        StageKey(tenant, (DEFAULT_STAGE,))  # checks the name
    if is_open and not tenants:
        raise ConfigError("others need a key: name at least one tenant")
    return tenants


def _folder(text: str) -> Path | None:
    return Path(text).expanduser().resolve() if text else None


def _mode(path: Path, is_yes: bool, console: Console) -> str:
    """Return the mode for opening the file. It is overwritten only after confirmation."""
    if not path.exists():
        return "x"
    question = f"{path} is there already. Overwrite it?"
    if not is_yes and Confirm.ask(question, console=console, default=False):
        return "w"
    raise ConfigError(f"{str(path)!r} is there already: say --output FILE, or take it away")


def _write(path: Path, mode: str, text: str, folder: Path | None) -> None:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"can't write {error.filename or str(path)!r}: {error.strerror}") from None
