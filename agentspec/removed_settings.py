"""Removed settings, flags, variables and commands, each with its replacement.

Every reader of settings asks here before it calls a name unknown. A row is a sentence in the imperative. Its
key is one of

- ``engine.NAME``, a setting of the engine that ``agentspec serve`` starts: its YAML key, its environment
  variable, the flag ``agentspec serve --NAME`` and the plug-in's key ``NAME``;
- ``GROUP.NAME``, any other setting of ``agentspec.yaml``: its YAML key and its environment variable;
- ``plugin.NAME``, a key that only the plug-in's JSON had;
- ``agentspec COMMAND --FLAG``, a flag that was no setting, and ``agentspec COMMAND``, a command;
- ``$AGENTSPEC_NAME``, an environment variable that was no setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentspec.errors import ConfigError

# sorted by key
REMOVED: Mapping[str, str] = {
    "agentspec bench": "measure a program with `agentspec compare`, recorded calls with `agentspec replay`; "
    "a checkout has `python -m benchmarks` and `python -m lab`.",
    "agentspec corpus export --corpus-snapshots": "snapshots are in the corpus: remove the flag.",
    "agentspec corpus forget --corpus-snapshots": "snapshots are in the corpus: remove the flag.",
    "agentspec corpus import --corpus-snapshots": "snapshots are in the corpus: remove the flag.",
    "agentspec corpus stats --corpus-snapshots": "snapshots are in the corpus: remove the flag.",
    "agentspec corpus verify": "use `agentspec corpus stats`, which reads all and counts damaged batches.",
    "agentspec replay --compare": "run `python -m lab compare` in a checkout.",
    "discovery.save_every_s": "remove it: counts are saved every 5 seconds, new clusters at once.",
    "engine.corpus_host": "set engine.corpus_stages to none for stages that may not leave the engine.",
    "engine.corpus_snapshots": "snapshots are in the corpus, in SQLite or Redis: remove the setting.",
    "engine.hybrid_threshold": "remove it; vLLM's hybrid chooses by measured gain, and a checkout has the "
    "paper's threshold in `python -m lab methods`.",
    "health.failing_s": "remove it: failed probes and connections alone decide which engines are preferred.",
    "health.num_failures": "set health.num_failed_looks: it counts failed connections, too.",
    "health.open_s": "set health.interval_s: the next good probe makes an engine preferred again.",
    "limits.log_bodies": "set server.record: calls are then appended to a file, with their content.",
    "plugin.batch_shape": "leave it out; every request gets as many draft tokens as are worth verifying.",
    "plugin.ragged_graphs": "leave it out; with adaptive_verification vLLM captures such graphs.",
}

SERVE = "agentspec serve"
PREFIX = "AGENTSPEC_"


def removed_setting(name: str) -> str | None:
    """Return ``was removed: ...`` for a YAML key (``engine.price``); None if it was not removed."""
    return _was_removed(name)


def removed_argument(command: str, argument: str) -> str | None:
    """Return the error for a removed flag or subcommand of ``command``; None if it was not removed."""
    flag = argument.partition("=")[0]
    names = [f"{command} {flag}"]
    if command == SERVE and flag.startswith("--"):
        names.append("engine." + flag.removeprefix("--").replace("-", "_"))
    return _error(flag if flag.startswith("-") else names[0], *names)


def refuse_removed_variables(environment: Iterable[str]) -> None:
    """Raise ConfigError if one of these environment variables was removed."""
    for name in sorted(environment):
        if name.upper().startswith(PREFIX):
            path = name.upper().removeprefix(PREFIX).lower().replace("__", ".")
            _refuse(f"${name}", f"${name.upper()}", path)


def refuse_removed_plugin_settings(names: Iterable[str]) -> None:
    """Raise ConfigError if one of these keys of the plug-in's JSON was removed."""
    for name in names:
        _refuse(f"the plug-in's setting {name!r}", f"plugin.{name}", f"engine.{name}")


def _refuse(shown: str, *names: str) -> None:
    if error := _error(shown, *names):
        raise ConfigError(error)


def _error(shown: str, *names: str) -> str | None:
    what = _was_removed(*names)
    return what and f"{shown} {what}"


def _was_removed(*names: str) -> str | None:
    instead = next((REMOVED[name] for name in names if name in REMOVED), None)
    return instead and f"was removed: {instead}"
