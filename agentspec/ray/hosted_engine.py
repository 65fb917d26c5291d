"""The engine of one replica: chosen, started and stopped as ``agentspec serve`` does it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.plan import choose_engine
from agentspec.commands.serve.settings import runtime_config_of
from agentspec.commands.serve.torch_engine import EmbeddedPlan, embedded
from agentspec.gateway import EngineSupervisor, Upstream
from agentspec.gateway.settings import Settings

if TYPE_CHECKING:
    from agentspec.corpus.corpus import Corpus

logger = logging.getLogger("agentspec")


@dataclass(slots=True)
class HostedEngine:
    """An engine with its corpus and its trees' files.

    Attributes:
        upstream: answers calls.
        corpus: shares outputs with other replicas; None = it has none, or it is in vLLM's worker.
        supervisor: runs vLLM as a process of its own; None for an engine in this process.
    """

    upstream: Upstream
    corpus: Corpus | None = None
    supervisor: EngineSupervisor | None = None
    _lifetime: ExitStack = field(default_factory=ExitStack)
    _supervising: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, options: ServeOptions, settings: Settings) -> HostedEngine:
        """Load the engine that the settings ask for; learning begins now.

        Raises:
            ConfigError, CheckpointError, CorpusError: it can't start.
        """
        choice = choose_engine(options, settings)
        logger.info("the engine is %s", choice)
        if choice.engine == "vllm":
            from agentspec.commands.serve import vllm_engine

            vllm_engine.check(options, settings)
            runtime = runtime_config_of(settings, options)
            upstream, _, supervisor = vllm_engine.behind_gateway(options, settings, runtime)
            return cls(upstream, supervisor=supervisor)
        plan = EmbeddedPlan.of(options, settings.engine, is_replaying=choice.engine == "replay")
        engine = embedded(plan)
        hosted = cls(engine.upstream, engine.corpus)
        hosted._lifetime.enter_context(engine.lifetime)
        return hosted

    async def start(self, join_s: float) -> None:
        """Wait until the engine is ready, and has learned what the corpus held.

        Args:
            join_s: longest wait for the corpus, in seconds. Then the engine serves without the rest.

        Raises:
            EngineStartError: vLLM did not become ready.
        """
        if self.supervisor is not None:
            await self._start_process(self.supervisor)
        await self.upstream.start()
        if self.corpus is not None and not await asyncio.to_thread(self.corpus.wait_joined, join_s):
            logger.warning("the corpus was not read within %g s: it is learned while requests run", join_s)

    async def close(self) -> None:
        """Stop the engine, then publish the last outputs and close the corpus."""
        await self.upstream.close()
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait({self._supervising})
        await asyncio.to_thread(self._lifetime.close)

    async def _start_process(self, supervisor: EngineSupervisor) -> None:
        ready = asyncio.Event()
        self._supervising = asyncio.create_task(supervisor.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._supervising, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._supervising.done():
            self._supervising.result()  # raises why it did not start
