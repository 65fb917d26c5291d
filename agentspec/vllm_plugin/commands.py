"""Commands of the control channel in a worker: they read statistics and change the forest.

A command runs between two decode steps, and its caller waits for the present step. A long command only starts
there: it continues in a thread, concurrently with the steps, and the control channel polls for its result,
by the name that it gave the job. ``stages``, which comes with the status, answers immediately unless there
are many stages.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from agentspec import __version__
from agentspec.draft import Source
from agentspec.errors import AgentSpecError, ConfigError
from agentspec.forest.autosave import ForestAutosave
from agentspec.forest.file import check_place
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted

logger = logging.getLogger(__name__)

Arguments = Mapping[str, Any]
Answer = dict[str, Any]

MOST_QUICK_STAGES = 128  # limit for an immediate answer: their figures take 2 ms
MOST_JOBS = 8  # limit of jobs that run, or have finished and were not polled yet


class Commands:
    """The commands of one worker.

    Args:
        file_suffix: suffix of the forest's file name, if several workers have one each.
        facts: returns further members of ``status``.
    """

    def __init__(
        self, drafter: ForestDrafter, file_suffix: str = "", facts: Callable[[], Answer] = dict
    ) -> None:
        self._drafter = drafter
        self._forest = drafter.forest
        self._facts = facts
        self._file_suffix = file_suffix
        self._at_once: dict[str, Callable[[Arguments], Answer]] = {
            "status": self._status,
            "evict": self._evict,
        }
        self._in_background: dict[str, Callable[[Arguments], Answer]] = {
            "trace": self._trace,
            "save": self._save,
            "load": self._load,
            "warm": self._warm,
            "stages": self._figures,
        }
        self._jobs: dict[str, Future[Answer]] = {}
        self._threads = ThreadPoolExecutor(2, "agentspec-commands")  # ``trace`` need not wait for ``load``
        self._autosave: ForestAutosave | None = None
        self._num_changes = 0  # number of the forest's changes by commands
        self._num_calls = 0  # number of calls by the control channel

    def run(self, command: str, arguments: str, job: str = "") -> str:
        """Run one command. Return the answer, or ``{"error": {"message": ...}}``, as JSON. Never raises.

        Args:
            arguments: a JSON object.
            job: the caller's name for this command, if it becomes a job. The command ``job`` polls by this
                name.
        """
        self._num_calls += 1
        try:
            if command == "stages" and len(self._drafter.stages.all) <= MOST_QUICK_STAGES:
                return json.dumps(self._figures(json.loads(arguments)))
            if command in self._at_once:
                return json.dumps(self._at_once[command](json.loads(arguments)))
            return json.dumps(self._job(job) if command == "job" else self._begin(command, arguments, job))
        except AgentSpecError as error:
            return json.dumps({"error": {"message": str(error)}})
        except Exception as error:
            logger.exception("the command %r failed", command)
            return json.dumps({"error": {"message": f"{command}: {error!r}"}})

    def restore(self) -> None:
        """Load the forest's file if there is one, and save to it regularly from now on.

        An unusable file is moved aside, unless ``strict_forest`` is set.

        Raises:
            ForestFileError: the place can't be read or written, or holds another file. The server does not
                start.
            ConfigError: the saved forest can't be loaded.
        """
        settings = self._drafter.settings
        if settings.forest_file is None:
            return
        path = self._path({})
        check_place(path)
        _ = self._drafter.texts.vocabulary  # takes seconds, too long for the shutdown
        autosave = ForestAutosave(
            self, path, settings.save_every_s, is_strict=settings.strict_forest, version=self._version
        )
        autosave.start()
        self._autosave = autosave

    def close(self) -> None:
        """Save once more and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._autosave is not None:
            self._autosave.stop()
        self._drafter.close()

    # ---- status, statistics and eviction ----

    def _status(self, _: Arguments) -> Answer:
        drafter = self._drafter
        return {
            "agentspec": __version__,
            "num_speculative_tokens": drafter.num_draft_tokens,
            "price": drafter.price,
            "tree_bytes": self._forest.memory_bytes(),
            "num_requests": len(drafter.live),
            "num_slots": drafter.meter.num_slots,
            "num_calls": self._num_calls,
            **({} if drafter.corpus is None else {"corpus": drafter.corpus.figures().describe()}),
            **self._facts(),
        }

    def _figures(self, _: Arguments) -> Answer:
        begin_s = time.monotonic()
        self._drafter.count()
        stages = list(self._drafter.stages.all.items())  # a copy: steps may run concurrently
        figures = [self._of_stage(stage, stats) for stage, stats in stages]
        return {"age_s": time.monotonic() - begin_s, **self._status({}), "stages": figures}

    def _of_stage(self, stage: StageKey, counters: StageStats) -> Answer:
        trees = self._trees(stage)
        figures = {field.name: getattr(counters, field.name) for field in fields(counters)}
        figures["tree_bytes"] = sum(map(self._forest.memory_bytes, trees))
        figures["tree_limit_bytes"] = len(trees) * self._forest.config.stage_limit_bytes
        for name in ("drafted_by_source", "accepted_by_source"):
            figures[name] = {Source(source).name.lower(): num for source, num in dict(figures[name]).items()}
        return {"tenant": stage.tenant, "stage": stage.name, **figures}

    def _evict(self, arguments: Arguments) -> Answer:
        stage = StageKey.parse(_text(arguments, "stage"), _text(arguments, "tenant"))
        before = self._forest.memory_bytes()
        for trees in self._trees(stage):
            self._forest.evict(trees)
        self._num_changes += 1
        return {"freed_bytes": max(0, before - self._forest.memory_bytes())}

    def _trees(self, stage: StageKey) -> list[StageKey]:
        return [adapted(stage, adapter) for adapter in list(self._drafter.adapters)]

    # ---- background jobs ----

    def _begin(self, command: str, arguments: str, name: str) -> Answer:
        if command not in self._in_background:
            raise ConfigError(f"there is no command {command!r}")
        if len(self._jobs) >= MOST_JOBS:
            done = next((other for other, job in self._jobs.items() if job.done()), None)
            if done is None:
                raise ConfigError(f"{len(self._jobs)} commands are waiting: try again later")
            del self._jobs[done]  # no client polled its result
        self._jobs[name] = self._threads.submit(self._work, command, arguments)
        return {"job": name}

    def _work(self, command: str, arguments: str) -> Answer:
        return self._in_background[command](json.loads(arguments))

    def _job(self, name: str) -> Answer:
        job = self._jobs.get(name)
        if job is None:
            raise ConfigError(f"there is no job {name!r}")
        if not job.done():
            return {"job": name}
        del self._jobs[name]
        return job.result()

    def _trace(self, arguments: Arguments) -> Answer:
        tenant = None if arguments.get("tenant") is None else _text(arguments, "tenant")
        trace = self._drafter.traces.of(tenant, _text(arguments, "id"))
        if trace is None:
            return {"steps": None}
        text = cache(self._drafter.texts.token)
        return {"steps": [step.as_texts(text).describe() for step in list(trace.steps)]}

    def save(self, path: Path) -> Answer:
        """Write all trees to a file; return its sizes. Raises ForestFileError."""
        self._drafter.settle()
        return asdict(self._forest.save(path, vocabulary=self._drafter.texts.vocabulary))

    def load(self, path: Path) -> Answer:
        """Add the content of a saved file; return its sizes. Raises ForestFileError."""
        loaded = self._forest.load(path, vocabulary=self._drafter.texts.vocabulary)
        self._num_changes += 1
        return asdict(loaded)

    def _save(self, arguments: Arguments) -> Answer:
        self._check_unshared()
        path = self._path(arguments)
        return {"path": str(path), **self.save(path)}

    def _load(self, arguments: Arguments) -> Answer:
        self._check_unshared()
        path = self._path(arguments)
        return {"path": str(path), **self.load(path)}

    def _check_unshared(self) -> None:
        if self._drafter.settings.corpus is not None:
            raise ConfigError(
                "this engine has a corpus, which keeps its outputs: its trees are neither saved nor loaded, "
                "because a file may hold outputs that were erased"
            )

    def _warm(self, arguments: Arguments) -> Answer:
        tenant, outputs = _text(arguments, "tenant"), arguments.get("outputs")
        if not isinstance(outputs, list):
            raise ConfigError(f"outputs are a list of stage and response, not {outputs!r}")
        # parse all outputs before learning any
        read = [(StageKey.parse(_text(one, "stage"), tenant), _text(one, "response")) for one in outputs]
        num_tokens = 0
        for stage, response in read:
            tokens = self._drafter.output_tokens(response)
            trees = adapted(stage, None)
            self._forest.learn(trees, tokens)
            if self._drafter.corpus is not None:
                self._drafter.corpus.share(trees, tokens)
            num_tokens += len(tokens)
        self._num_changes += 1
        return {"num_outputs": len(read), "num_tokens": num_tokens}

    def _path(self, arguments: Arguments) -> Path:
        given = arguments.get("path")
        if given is not None and (not isinstance(given, str) or not given):
            raise ConfigError(f"path must be a non-empty string, not {given!r}")
        return Path(f"{self._drafter.settings.forest_files().find(given)}{self._file_suffix}")

    def _version(self) -> tuple[int, int]:
        """Return the numbers of changes by commands and of steps: while both stay, the trees stay too."""
        return self._num_changes, self._drafter.timing.num_steps


def _text(arguments: Any, name: str) -> str:
    value = arguments.get(name) if isinstance(arguments, dict) else None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a text, not {value!r}")
    return value
