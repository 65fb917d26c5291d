"""Opening the corpus of an engine: its settings checked, its stores opened, its key read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from agentspec.corpus.corpus import Corpus, EngineTrees
from agentspec.corpus.encryption import KEY_VARIABLE, KeyRing, operator_key
from agentspec.corpus.reach import FLEET, HOST, reach_of
from agentspec.corpus.split_corpus import SplitCorpus
from agentspec.corpus.store import (
    CorpusStore,
    check_location,
    check_snapshots,
    is_remote,
    open_store,
    without_password,
)
from agentspec.errors import ConfigError
from agentspec.extras import check_installed

logger = logging.getLogger("agentspec")

StagePath = tuple[str, ...]
EngineCorpus = Corpus | SplitCorpus


def check_corpus(
    location: str,
    snapshots: str | None = None,
    stages: Mapping[StagePath, str] | None = None,
    host: str | None = None,
    host_name: str = "corpus_host",
) -> None:
    """Check the requirements of :func:`open_corpus`, as far as possible without the stores.

    Args:
        location, snapshots, stages, host: as there.
        host_name: of the setting ``host``, for errors.

    Raises:
        ConfigError: the location is neither a folder nor a Redis URL, the URL for snapshots is none, the
            host's corpus is no folder or not needed, the operator's key can't be used, or a package is
            missing.
    """
    check_installed("corpus")
    check_location(location)
    if snapshots is not None:
        check_snapshots(snapshots)
        check_installed("object-store")
    if host is not None:
        _check_host(host, host_name, location, snapshots, stages or {})
    if os.environ.get(KEY_VARIABLE):
        operator_key()


def _check_host(
    host: str, name: str, location: str, snapshots: str | None, stages: Mapping[StagePath, str]
) -> None:
    if not host or "://" in host:
        raise ConfigError(f"{name} must be a folder of this machine, not {without_password(host)!r}")
    if _is_on_host(location, snapshots):
        raise ConfigError(f"{name} is for nothing: the corpus in {location!r} is on this machine already")
    if HOST not in stages.values():
        raise ConfigError(f"{name} is for nothing: no stage has the reach host")
    if not is_remote(location) and Path(host).resolve() == Path(location).resolve():
        raise ConfigError(f"{name} {host!r} is the folder of the corpus: name another one")


def open_corpus(
    location: str,
    vocabulary: str,
    vocab_size: int,
    trees: EngineTrees,
    snapshots: str | None = None,
    stages: Mapping[StagePath, str] | None = None,
    host: str | None = None,
) -> EngineCorpus:
    """Return the corpus at a place, not started. ``$AGENTSPEC_CORPUS_KEY``, an operator's key, encrypts it.

    Args:
        location: as in :func:`open_store`.
        vocabulary: fingerprint of the tokenizer.
        vocab_size: size of the model's vocabulary.
        trees: what learns.
        snapshots: as in :func:`open_store`.
        stages: how far each stage's outputs travel (:func:`agentspec.corpus.reach.reaches`).
        host: folder for the outputs of stages that do not leave this machine; None = they stay in this
            engine, unless the corpus is on this machine.

    Raises:
        ConfigError: as :func:`check_corpus`.
        CorpusError: a folder can't be used.
    """
    check_corpus(location, snapshots, stages, host)
    reach = reach_of(stages or {})
    is_on_host = _is_on_host(location, snapshots)

    def is_shared(path: StagePath) -> bool:
        return reach(path) == FLEET or (is_on_host and reach(path) == HOST)

    def is_of_host(path: StagePath) -> bool:
        return reach(path) == HOST

    def opened(store: CorpusStore, is_shared: Callable[[StagePath], bool]) -> Corpus:
        return Corpus(store, vocabulary, vocab_size, trees, keys=_keys(store), is_shared=is_shared)

    _warn_unless_encrypted(location, snapshots)
    store = open_store(location, snapshots=snapshots)
    if host is None:
        return opened(store, is_shared)
    of_host = opened(open_store(host), is_of_host)
    return SplitCorpus(opened(store, is_shared), of_host, is_of_host, Path(host), vocabulary)


def _is_on_host(location: str, snapshots: str | None) -> bool:
    return not is_remote(location) and not is_remote(snapshots or "")


def _keys(store: CorpusStore) -> KeyRing | None:
    return KeyRing(store, operator_key()) if os.environ.get(KEY_VARIABLE) else None


def _warn_unless_encrypted(location: str, snapshots: str | None) -> None:
    remote = [place for place in (location, snapshots or "") if is_remote(place)]
    if remote and not os.environ.get(KEY_VARIABLE):
        logger.warning(
            "outputs are readable to everybody who can read %s: set $%s to encrypt them",
            " and ".join(map(without_password, remote)),
            KEY_VARIABLE,
        )
