"""Known and misspelt environment variables ``$AGENTSPEC_...``.

An ignored variable may be the one that closes a gateway, so a near miss is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from pydantic import BaseModel

from agentspec.errors import ConfigError
from agentspec.gateway.settings import ENVIRONMENT_PREFIX, Settings
from agentspec.removed_settings import refuse_removed_variables

# read elsewhere: by the commands, the adapters, the plug-in and the tests
OTHER_VARIABLES = {
    "AGENTSPEC_ADMIN_KEY": "the operator's key, as `agentspec serve --admin-key`",
    "AGENTSPEC_API_KEY": "key that adapters and commands send to the gateway",
    "AGENTSPEC_API_KEYS": "keys of the gateway's clients: KEY or KEY=TENANT, with commas between",
    "AGENTSPEC_BROWSER": "for tests: path of a Chromium",
    "AGENTSPEC_CONTROL_TOKEN": "token of the plug-in's control channel, the same for gateway and vLLM",
    "AGENTSPEC_CORPUS_KEY": "key that encrypts the corpus",
    "AGENTSPEC_DATA_PARALLEL_SIZE": "number of data-parallel ranks of a vLLM that tags requests itself",
    "AGENTSPEC_DISABLE": "if set, adapters change nothing",
    "AGENTSPEC_DISCOVERY_FILE": "file of discovered stages of a vLLM that tags requests itself",
    "AGENTSPEC_ENGINE_API_KEY": "the engine's own key, for `--engine-url` and `--engine-only`",
    "AGENTSPEC_ENGINE_PYTHON": "for tests: Python that has the embedded engine",
    "AGENTSPEC_FUZZ_CASES": "for tests: number of cases",
    "AGENTSPEC_HOSTS": "further hosts that adapters may send tags to, with commas between",
    "AGENTSPEC_RUN": "set by `agentspec run` for its program, as the following ones",
    "AGENTSPEC_RUN_KEY": "key that `agentspec run` made for its gateway",
    "AGENTSPEC_RUN_PARENT": "process that started the program",
    "AGENTSPEC_RUN_REPORT": "where the program's adapters report what they tag",
    "AGENTSPEC_RUN_SAID": "names that were reported already",
    "AGENTSPEC_RUN_SESSION": "session of the run",
    "AGENTSPEC_RUN_TAGS": "tags of the run",
    "AGENTSPEC_RUN_UNTRACED": "set if `agentspec run` switched the tracing of an SDK off",
    "AGENTSPEC_SESSION": "session of all calls of a program",
    "AGENTSPEC_URL": "the gateway's URL, for adapters and commands; default: http://127.0.0.1:8000",
    "AGENTSPEC_VLLM_SETTINGS": "settings of the plug-in in vLLM, as JSON",
    "AGENTSPEC_WORKFLOW": "workflow of all calls of a program",
}
# variables that Kubernetes sets in a container for a Service named agentspec or agentspec-...
_OF_A_SERVICE = re.compile(r".*_SERVICE_(HOST|PORT(_\w+)?)|.*PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")
_LIKENESS = 0.85  # difflib's ratio of two names


def unknown_variables(environment: Mapping[str, str], used: Collection[str] = ()) -> list[str]:
    """Return the variables with our prefix that nothing reads, except those in ``used``.

    Args:
        used: variables that the configuration file names.

    Raises:
        ConfigError: one lacks its group (``AGENTSPEC_SPILL``), nearly matches the name of a setting, or
            belongs to a removed setting.
    """
    refuse_removed_variables(set(environment) - set(used))
    unknown = []
    for name in sorted(environment):
        if name in used or not _is_unknown(name.upper(), environment[name]):
            continue
        if right := _meant(name.upper()):
            raise ConfigError(
                f"${name} is no setting: write {' or '.join(f'${one}' for one in right)}, or rename it if it "
                "is not meant for this gateway"
            )
        unknown.append(name)
    return unknown


def _is_unknown(name: str, value: str) -> bool:
    if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES or name in _SETTINGS:
        return False
    rest = name.removeprefix(ENVIRONMENT_PREFIX)
    if "__" in rest and rest.partition("__")[0].lower() in Settings.model_fields:
        return False  # loading the settings reports the error
    return not (_OF_A_SERVICE.fullmatch(name) or _SERVICE_URL.fullmatch(value))


def _meant(name: str) -> list[str]:
    """Return the settings that ``name`` may be a misspelling of."""
    rest = name.removeprefix(ENVIRONMENT_PREFIX)
    if without_group := [variable for variable, setting in _SETTINGS.items() if setting == rest]:
        return without_group
    plain = {_plain(one): one for one in (*_SETTINGS, *OTHER_VARIABLES)}
    return [plain[one] for one in get_close_matches(_plain(name), plain, 1, _LIKENESS)]


def _plain(name: str) -> str:
    return name.removeprefix(ENVIRONMENT_PREFIX).replace("__", "_")


def _settings() -> Iterator[tuple[str, str]]:
    """Yield the variable of each setting and the setting's own name, in capitals."""
    defaults = Settings.model_construct()
    for group in Settings.model_fields:
        variable = ENVIRONMENT_PREFIX + group.upper()
        yield variable, group.upper()
        value = getattr(defaults, group)
        if isinstance(value, BaseModel):
            for name in type(value).model_fields:
                yield f"{variable}__{name.upper()}", name.upper()


_SETTINGS = dict(_settings())
