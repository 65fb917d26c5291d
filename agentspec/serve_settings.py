"""Settings of what ``agentspec serve`` starts: its server, and its engine with the drafts and the trees.

One field per setting: name, type, range, default, description. From the fields come the flags, the YAML, the
environment variables, the plug-in's JSON, ``--help`` and the reference page. ``gateway.settings`` holds the
other groups of the file. Imports stay light: ``--help`` and vLLM's worker load this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentspec.corpus.settings import parse_reaches
from agentspec.distribution import DOCUMENTS
from agentspec.errors import ConfigError
from agentspec.wire import MAX_DRAFT_TOKENS

MAX_MB = 1 << 24
MAX_PORT = 65535
SECRETS = frozenset(("api_key", "control_token", "sha256", "admin_key_sha256"))
_ORIGIN = re.compile(r"(?!http://[^/]*:80$|https://[^/]*:443$)[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+")


def setting(
    default: Any, text: str, *, metavar: str = "", common: bool = False, example: Any = None, **limits: Any
) -> Any:
    """Return a pydantic field.

    Args:
        text: description in help, file and reference page. One line; names a default that is not a value.
        metavar: of its flag's value; without it, made from the type.
        common: ``serve --help`` shows the flag; ``--help-all`` shows all of them.
        example: value in the file with all settings, where the default is no example.
        limits: of pydantic: ``ge``, ``pattern``, ``repr`` ...
    """
    extra: Any = {"metavar": metavar, "common": common, "example": example}
    return Field(default, description=text, json_schema_extra=extra, **limits)


def presentation(field: FieldInfo) -> Mapping[str, Any]:
    """Return the ``metavar``, ``common`` and ``example`` of a field that :func:`setting` made."""
    return cast(Mapping[str, Any], field.json_schema_extra)


class Group(BaseModel):
    """A group of settings. Values in errors may be secret, so pydantic hides them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, defer_build=True
    )


def mistake(error: ErrorDetails) -> str:
    """Return the message of one of pydantic's errors with the value, unless that may be a secret."""
    message = re.sub("^(Input|String) should ", "must ", error["msg"].removeprefix("Value error, "))
    value = error["input"]
    is_secret = not SECRETS.isdisjoint(map(str, error["loc"])) or (isinstance(value, str) and "@" in value)
    if error["type"] == "missing" or is_secret or not isinstance(value, str | int | float | bool):
        return message
    return message if repr(value) in message else f"{message}, not {value!r}"


def mistakes(error: ValidationError) -> str:
    """Return all messages of pydantic's error, each with the name of its setting."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'all'}: {mistake(one)}"
        for one in error.errors(include_url=False)
    )


class ServerSettings(Group):
    """Address, shutdown and logs."""

    host: str = setting(
        "127.0.0.1", "address to listen on; 0.0.0.0 for other machines: keys are then required", common=True
    )
    port: int = setting(8000, "port to listen on; 0 = any free one", common=True, ge=0, le=MAX_PORT)
    allow_open: bool = setting(False, "allow a public address without any key")
    grace_s: float = setting(5.0, "seconds that requests in flight have to finish at shutdown", gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "least level of the lines in the log", common=True
    )
    log_format: Literal["text", "json"] = setting("text", "format of the log; json = one object per line")
    record: str | None = setting(
        None,
        "DANGEROUS: append every call, prompt and answer, to this file, for --engine replay",
        metavar="FILE",
    )
    cors_origins: tuple[str, ...] = setting(
        (), 'web pages that may use the gateway from a browser: [https://app.example]; ["*"] = all'
    )

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Check for the form that browsers send: no path, no capitals, no default port of the scheme."""
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"an origin looks like 'https://app.example:8443', or is '*', not {origin!r}"
                )
        return origins


class ModelSettings(Group):
    """The engine and its model, whichever engine it is."""

    engine: Literal["auto", "torch", "vllm", "replay"] = setting(
        "auto",
        "auto: vLLM if a model is given and vLLM is installed, else torch, the embedded engine; replay: the "
        "embedded engine with recorded answers",
        common=True,
    )
    model: str | None = setting(
        None,
        "folder of a checkpoint; for vLLM also a name; default: the bundled one",
        metavar="MODEL",
        common=True,
        example="Qwen/Qwen3-8B",
    )
    served_model_name: str | None = setting(
        None, "name of the model in /v1/models; default: that of model", metavar="NAME", example="qwen"
    )
    max_model_len: int | None = setting(
        None, "most tokens of prompt and answer; default: the model's limit", example=32768, ge=1
    )
    dtype: str | None = setting(
        None, "float32, bfloat16 or float16; default: by device", metavar="TYPE", example="bfloat16"
    )
    max_draft: int | None = setting(
        None,
        "most tokens of a draft; default: 16, with vLLM 15",
        common=True,
        example=15,
        ge=0,
        le=MAX_DRAFT_TOKENS,
    )


class DraftingSettings(Group):
    """Drafts and trees, in both engines. The plug-in's JSON has these names too."""

    rule: Literal["learned", "paper"] = setting("learned", f"how drafts are chosen ({DOCUMENTS}/drafting.md)")
    price: float | None = setting(
        None,
        "draft no token with a lower probability of acceptance; default: measured from step times",
        example=0.02,
        ge=0,
        le=1,
    )
    stage_budget_mb: int = setting(64, "MiB of one stage's tree", ge=1, le=MAX_MB)
    forest_file: str | None = setting(
        None,
        "load the trees from this file, and save them to it periodically and at shutdown",
        metavar="FILE",
        common=True,
        example="/var/lib/agentspec/forest",
        min_length=1,
    )
    forest_folder: str | None = setting(
        None,
        "folder of files that operators may name to save and load; default: that of forest_file",
        metavar="DIR",
        example="/var/lib/agentspec",
        min_length=1,
    )
    strict_forest: bool = setting(
        False,
        "refuse to start with an unusable forest_file; else it is moved aside, and the trees begin empty",
    )
    save_every_s: float | None = setting(
        None,
        "seconds between two saves; default: 500 times what the last save took, but 10 to 300",
        example=60,
        gt=0,
    )
    corpus: str | None = setting(
        None,
        "share outputs with other engines: a folder, or redis://HOST:PORT/DB; not with forest_file "
        f"({DOCUMENTS}/fleet.md)",
        metavar="PLACE",
        common=True,
        example="/var/lib/agentspec/corpus",
        repr=False,
    )
    corpus_stages: dict[str, Literal["none", "fleet"]] = setting(
        {},
        "who gets the outputs of a stage, and of all below it: fleet = all engines of the corpus, the "
        "default, none = they stay in this engine",
        metavar="STAGE=none|fleet,...",
        example={"support": "none"},
    )

    @field_validator("corpus_stages", mode="before")
    @classmethod
    def _parse_reaches(cls, given: Any) -> Any:
        """Parse the text of a flag."""
        try:
            return parse_reaches(given) if isinstance(given, str) else given
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def check_places(self, name_of: Callable[[str], str] = str) -> None:
        """Raise ConfigError if settings of the corpus and of the forest file contradict each other.

        Args:
            name_of: returns the name of a setting for errors.
        """
        corpus = name_of("corpus")
        if self.corpus_stages and self.corpus is None:
            stages = name_of("corpus_stages")
            raise ConfigError(f"{stages} has no effect without {corpus}: set {corpus}, or remove {stages}")
        for name in ("forest_file", "forest_folder", "strict_forest", "save_every_s"):
            if getattr(self, name) and self.corpus is not None:
                raise ConfigError(
                    f"{name_of(name)} can't be used with {corpus}: the corpus keeps the outputs, and a "
                    "forest file may hold outputs that were erased from it"
                )


class EmbeddedSettings(Group):
    """The embedded engine only (PyTorch)."""

    draft: Literal["chain", "tree", "off"] = setting("tree", "shape of a draft; off = no drafts")
    slots: int = setting(16, "requests at a time", ge=1)
    kv_cache_mb: int | None = setting(
        None,
        "MiB of the tokens of all requests, which wait for it; default: half of what the weights leave free",
        example=4096,
        ge=1,
        le=MAX_MB,
    )
    threads: int | None = setting(
        None, "CPU threads of torch; default: torch's choice, 1 for the bundled model", example=2, ge=1
    )
    device: str = setting(
        "cpu",
        "cpu, cuda or cuda:N",
        metavar="DEVICE",
        common=True,
        pattern="^(cpu|cuda|mps|xpu)(:[0-9]+)?$",
    )
    trace: str | None = setting(
        None,
        "with the engine replay: file of recorded calls, *.jsonl or *.jsonl.gz",
        metavar="FILE",
        example="/var/lib/agentspec/calls.jsonl",
    )


class VllmSettings(Group):
    """vLLM only, with all options of vLLM's own."""

    draft_model: str | None = setting(
        None,
        "a model that drafts together with the trees: the folder of an EAGLE-3 head or of a smaller "
        f"model; mtp = heads in the model's own checkpoint ({DOCUMENTS}/hybrid.md)",
        metavar="DIR",
        example="/models/eagle3",
        min_length=1,
    )
    zero_hop: bool = setting(
        False,
        "no gateway: vLLM's own server listens on --host and --port and tags requests itself",
        common=True,
    )
    engine_only: bool = setting(
        False,
        "no gateway: vLLM's own server listens on --host and --port, for gateways elsewhere, which tag "
        "requests; its key is $AGENTSPEC_ENGINE_API_KEY, that of its plug-in $AGENTSPEC_CONTROL_TOKEN",
        common=True,
    )
    engine_port: int | None = setting(
        None, "vLLM's port, on loopback; default: a free one", example=8001, ge=0, le=MAX_PORT
    )
    engine_start_timeout_s: float = setting(900.0, "seconds until vLLM must be ready", gt=0)
    arguments: tuple[str, ...] = setting(
        (), "vLLM's own options, as on its command line", example=["--max-num-seqs", "64"]
    )


class EngineSettings(VllmSettings, EmbeddedSettings, DraftingSettings, ModelSettings):
    """The engine to start, if there are no upstreams."""
