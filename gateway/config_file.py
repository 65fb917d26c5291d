"""The ``agentspec.yaml`` file with all settings. The environment overrides it; errors name the place.

Every setting is also ``$AGENTSPEC_<GROUP>__<NAME>`` (``AGENTSPEC_ROUTING__SPILL=2``), with lists and groups
as JSON. A value ``${NAME}`` in the file is that environment variable, which keeps secrets out of the file.

While the gateway runs, the file is read again on SIGHUP, or when it changes. A valid version takes effect.
An invalid version only revokes the keys that it lacks, see :meth:`Reload.read`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from agentspec.errors import AgentSpecError, ConfigError
from agentspec.gateway.environment import unknown_variables
from agentspec.gateway.settings import ENVIRONMENT_PREFIX, KeySettings, Settings
from agentspec.gateway.yaml_limits import LimitError, load_bounded, read_bounded
from agentspec.removed_settings import removed_setting
from agentspec.serve_settings import mistake

_DUPLICATE = re.compile(r'found duplicate key "(.*?)" with')
MAX_MISTAKES = 20  # that one message names
MAX_CUTS = 8  # groups at the end of a file that are tried without
KEYS_VARIABLE = f"{ENVIRONMENT_PREFIX}KEYS"
_GROUP = re.compile(r"\w")  # a line at the left margin
_KEYS: TypeAdapter[tuple[KeySettings, ...]] = TypeAdapter(tuple[KeySettings, ...])
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

logger = logging.getLogger("agentspec.gateway")

Location = tuple[str | int, ...]
POLL_S = 0.25


def load_settings(path: Path | None, raw: bytes | None = None) -> Settings:
    """Return the settings from the file at ``path`` and the environment, or from the environment only.

    Takes a second for thousands of API keys: in a running gateway, call it in a thread.

    Args:
        raw: content of the file, if it was read already.

    Raises:
        ConfigError: the file can't be read, or values are wrong; each is named with its place.
    """
    tree = None if path is None else _parsed(path, read_bounded(path) if raw is None else raw)
    unknown = unknown_variables(os.environ, set(_variables(tree)))
    if unknown:
        logger.warning("no setting, and ignored: %s", ", ".join(f"${name}" for name in unknown))
    values = {} if tree is None else _plain(tree, path, 1)
    try:
        return Settings(**values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        more = [f"and {len(errors) - MAX_MISTAKES} more"] if len(errors) > MAX_MISTAKES else []
        raise ConfigError("\n".join([*_lines(errors[:MAX_MISTAKES], tree, path), *more])) from None
    except SettingsError as error:  # a variable that should be JSON
        raise ConfigError(f"the environment: {error}") from None


def readable_keys(raw: bytes, path: Path) -> tuple[KeySettings, ...] | None:
    """Return the API keys of a file with mistakes elsewhere; None if its list of keys can't be trusted.

    The list counts if it is valid, and if everything up to its end is YAML, so that it is not cut off.
    """
    try:
        tree = _before_mistake(raw.decode(), path)
        given = None if tree is None or KEYS_VARIABLE in os.environ else _plain(tree.get("keys"), path, 1)
        return None if given is None else _KEYS.validate_python(given)
    except (ConfigError, UnicodeDecodeError, ValidationError):
        return None


def _before_mistake(text: str, path: Path) -> CommentedMap | None:
    """Return the groups that end before the first mistake in the YAML."""
    lines = text.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _GROUP.match(line)]
    for end in (len(lines), *begins[: -MAX_CUTS - 1 : -1]):
        try:
            return _parsed(path, "".join(lines[:end]).encode())
        except ConfigError:
            continue
    return None


def _parsed(path: Path, raw: bytes) -> CommentedMap | None:
    """Return the file's mapping with line numbers; None if it is empty."""
    try:
        tree = load_bounded(raw.decode())
    except LimitError as error:
        raise ConfigError(f"{path}{_mark(error)}: {error.problem}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is no UTF-8 text") from None
    except DuplicateKeyError as error:  # its text shows values, which may be secret
        found = _DUPLICATE.match(error.problem or "")
        name = repr(found[1]) if found else "a name"
        raise ConfigError(f"{path}{_mark(error)}: {name} is there twice") from None
    except MarkedYAMLError as error:
        raise ConfigError(f"{path}{_mark(error)}: this is no YAML: {error.problem}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: this is no YAML: {error}") from None
    if tree is not None and not isinstance(tree, CommentedMap):
        raise ConfigError(f"{path}:1: the file must be a mapping, like 'server: ...'")
    return tree


def _mark(error: MarkedYAMLError) -> str:
    return f":{error.problem_mark.line + 1}" if error.problem_mark else ""


def _variables(node: object) -> Iterator[str]:
    """Return the variables that values name."""
    if isinstance(node, str) and (named := _VARIABLE.fullmatch(node)):
        yield named[1]
    elif isinstance(node, Mapping | list):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from _variables(value)


def _plain(node: Any, path: Path | None, line: int) -> Any:
    """Return a value without its places, with environment variables substituted."""
    if isinstance(node, TaggedScalar) or getattr(getattr(node, "tag", None), "value", None):
        raise ConfigError(f"{path}:{line}: the tag {node.tag.value!r} has no meaning here")
    if isinstance(node, CommentedMap):
        return {str(key): _plain(value, path, _line(node, key) or line) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value, path, _line(node, index) or line) for index, value in enumerate(node)]
    if isinstance(node, str) and (named := _VARIABLE.fullmatch(node)):
        if named[1] not in os.environ:
            raise ConfigError(f"{path}:{line}: there is no ${named[1]} in the environment")
        return os.environ[named[1]]
    if isinstance(node, ScalarBoolean):
        return bool(node)
    return next((kind(node) for kind in (bool, str, int, float) if isinstance(node, kind)), node)


def _lines(errors: Sequence[ErrorDetails], tree: CommentedMap | None, path: Path | None) -> Iterator[str]:
    for error in errors:
        if error["type"] == "extra_forbidden":
            name = ".".join(part for part in error["loc"] if isinstance(part, str))
            meant = removed_setting(name) or f"is no setting; {_meant(error['loc'])}"
            yield f"{_place(error['loc'], tree, path, is_name=True)} {meant}"
            continue
        yield f"{_place(error['loc'], tree, path)}: {mistake(error)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a message with the closest match for ``name`` in ``known``, or with all of ``known``."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


def _meant(location: Location) -> str:
    """Suggest a setting for the unknown ``location``: the closest match, or all names of its group."""
    name, group = str(location[-1]), _group(location[:-1])
    known = list(group.model_fields)
    if name not in known and not get_close_matches(name, known, 1):
        for other, field in Settings.model_fields.items():
            of_field = _model_of(field.annotation)
            if of_field is not None and name in of_field.model_fields:
                return f"did you mean {other}.{name}?"
    return suggestion(name, known)


def _group(location: Location) -> type[BaseModel]:
    """Return the model that has the settings at ``location``."""
    group: type[BaseModel] = Settings
    for part in location:
        field = group.model_fields.get(str(part))  # a number is an index into a list of such models
        group = (field and _model_of(field.annotation)) or group
    return group


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type like ``Group``, ``Group | None`` or ``tuple[Group, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for one in get_args(annotation) if (model := _model_of(one))), None)


def _place(location: Location, tree: CommentedMap | None, path: Path | None, *, is_name: bool = False) -> str:
    """Return the place of a value (or of its name, if ``is_name``), and the setting's name."""
    field = _field(location)
    variable = ENVIRONMENT_PREFIX + "__".join(map(str, location)).upper()
    line = None if tree is None else _found(tree, location, is_name=is_name)
    if variable in os.environ or (location and line is None):
        return f"${variable}: {field}"
    place = str(path or "the settings") if line is None else f"{path}:{line}"
    return f"{place}: {field}" if field else place


def _field(location: Location) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _found(tree: CommentedMap, location: Location, *, is_name: bool = False) -> int | None:
    """Return the line of the value at ``location``, or of its deepest ancestor in the file; None without one.

    With ``is_name``, return the line of the name instead of the value, which may begin lines further down.
    """
    line, node = None, tree
    for index, part in enumerate(location, 1):
        following = _line(node, part, is_name=is_name and index == len(location))
        if following is None:
            break
        line, node = following, node[part]
    return line


def _line(node: object, key: Any, *, is_name: bool = False) -> int | None:
    """Return the line of a group's value or of its name; None if the group does not have it itself."""
    if not isinstance(node, CommentedMap | CommentedSeq) or key not in (node.lc.data or ()):
        return None
    if isinstance(node, CommentedSeq):
        return int(node.lc.item(key)[0]) + 1
    return int((node.lc.key(key) if is_name else node.lc.value(key))[0]) + 1


Stamp = tuple[int, int, int]
Step = Callable[[bytes], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Version:
    """The file at one moment.

    Attributes:
        stamp: changes when the file is written or replaced; None if there is no file.
        content: its bytes, or the reason for which it can't be read.
    """

    stamp: Stamp | None
    content: bytes | ConfigError


class Reload:
    """Applies new versions of the file at ``path``, and logs the errors of invalid ones.

    A file that is being written differs from one check to the next. Each check keeps the content, which takes
    effect when two checks in a row have found the same. SIGHUP applies the present content.

    Args:
        read: parses a file's content, in a thread, so that streams continue. Returns a function that applies
            the settings, in the event loop.
        salvage: the same for content that ``read`` or its result refused; see RunningSettings.
    """

    def __init__(
        self,
        path: Path,
        read: Step,
        salvage: Step,
    ) -> None:
        self._path = path
        self._read = read
        self._salvage = salvage
        self._asked: asyncio.Queue[Version] = asyncio.Queue()
        self._last = self.version()
        self._read_stamp = self._last.stamp

    def ask(self, version: Version) -> None:
        """Request that ``version`` is read, even if it has not changed. Call from the event loop."""
        self._asked.put_nowait(version)

    def version(self) -> Version:
        """Return the file as it is now."""
        stamp = self._stamp()
        try:
            if stamp is not None and not self._path.is_file():  # a pipe would not end
                raise ConfigError(f"{str(self._path)!r} is no regular file")
            return Version(stamp, read_bounded(self._path))
        except ConfigError as error:
            return Version(stamp, error)

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    version: Version | None = await self._asked.get()
            except TimeoutError:
                version = self.look()
            if version is not None:
                await self.read(version)

    def look(self) -> Version | None:
        """Look at the file. Return its version if it is new, and the same as at the previous look."""
        stamp = self._stamp()
        if stamp != self._last.stamp:
            self._last = self.version()
            return None
        return None if stamp == self._read_stamp else self._last

    async def read(self, version: Version) -> None:
        """Apply a version. If it is invalid, log its errors, and revoke the keys that it lacks."""
        self._last, self._read_stamp = version, version.stamp
        if isinstance(version.content, ConfigError):
            _log(version.content)
            return
        if await self._try(self._read, version.content):
            logger.info("the configuration was read again from %s", self._path)
        else:
            await self._try(self._salvage, version.content)

    async def _try(self, step: Step, content: bytes) -> bool:
        try:
            (await asyncio.to_thread(step, content))()
        except AgentSpecError as error:
            _log(error)
        except Exception:
            logger.exception("the configuration stays as it was")
        else:
            return True
        return False

    def _stamp(self) -> Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _log(error: AgentSpecError) -> None:
    logger.error("the configuration stays as it was: %s", error)
