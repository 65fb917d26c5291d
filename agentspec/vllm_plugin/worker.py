"""vLLM's worker, extended to report steps and requests to the plug-in's planner.

``--worker-cls agentspec.vllm_plugin.worker.AgentSpecWorker``
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.sample import rejection_sampler

from agentspec.errors import ConfigError
from agentspec.vllm_plugin import cpu
from agentspec.vllm_plugin.checks import (
    MOST_DRAFT_TOKENS,
    check_draft_length,
    check_executor,
    check_lossless,
    check_pipeline,
    check_version,
)
from agentspec.vllm_plugin.commands import Answer, Commands
from agentspec.vllm_plugin.launch import DEFAULT_MAX_DRAFT, MODEL_METHODS, RUNNER_VARIABLE, ModelRunner
from agentspec.vllm_plugin.planner import LONGEST_STEP_S, StepPlanner
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.signals import Signal
from agentspec.vllm_plugin.v1.proposer import ForestProposer

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class AgentSpecWorker(PlatformWorker):  # type: ignore[misc]
    """The platform's worker, with a forest next to its model."""

    _planner: StepPlanner | None = None  # in the one worker that drafts
    _commands: Commands | None = None
    _is_warm = False

    def init_device(self) -> None:
        """Create the model runner. Raises ConfigError if the plug-in can't work here."""
        settings = self._check()
        if self.use_v2_model_runner:
            from agentspec.vllm_plugin.v2 import speculator

            method = self.vllm_config.speculative_config.method
            speculator.install(settings.draft_model_tokens if method in MODEL_METHODS else 0)
        super().init_device()

    def load_model(self, **options: Any) -> None:
        """Load the model, then the saved forest, or join the corpus."""
        if current_platform.is_cpu():
            cpu.repair_kernel()
        super().load_model(**options)
        self._planner = self._found_planner()
        if self._planner is None:
            return
        drafter = self._planner.drafter
        self._commands = Commands(drafter, self._file_suffix(), self._facts)
        drafter.forest.start_threads()
        self._commands.restore()
        drafter.open_corpus()
        if drafter.settings.forest_file and not self.vllm_config.shutdown_timeout:
            logger.warning(
                "without --shutdown-timeout vLLM kills this process at shutdown: outputs learned after the "
                "last regular save will be lost"
            )

    def compile_or_warm_up_model(self) -> Any:
        """Warm up. vLLM runs dummy requests here, from which nothing may be learned."""
        planner, self._planner = self._planner, None
        try:
            return super().compile_or_warm_up_model()
        finally:
            self._planner = planner
            self._is_warm = True

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run one step, and report its requests before and after."""
        planner = self._planner
        if planner is not None:
            planner.begin_step(scheduler_output)
            if not self.use_v2_model_runner:
                runner = self.model_runner
                # otherwise vLLM stops all drafts if one request is near the end of its context; here each has
                # a limit
                runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens + 1
        output = super().execute_model(scheduler_output)
        if planner is not None:
            planner.start(scheduler_output.scheduled_new_reqs)
        if output is None and self._samples_at_once(scheduler_output):
            return self.sample_tokens(None)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and draft the dictated tokens."""
        if self._planner is not None:
            self._planner.expect(Signal.of(grammar_output).dictated)
        return super().sample_tokens(grammar_output)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return the drafts, without padding, to a scheduler that waits for them."""
        drafts = super().take_draft_token_ids()
        if drafts is None or self._planner is None or not self.use_v2_model_runner:
            return drafts
        lengths = self._planner.last_lengths(LONGEST_STEP_S)
        drafts.draft_token_ids = [
            ids[: lengths.get(name, 0)]
            for name, ids in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        ]
        return drafts

    def agentspec_control(self, command: str, arguments: str, job: str) -> str | None:
        """Run a command of the control channel (``control``) and return its JSON; None without a forest."""
        return None if self._commands is None else self._commands.run(command, arguments, job)

    def shutdown(self) -> None:
        """Save the forest if it has a file, or share the last outputs, then shut down."""
        if self._commands is not None:
            self._commands.close()
        super().shutdown()

    def _found_planner(self) -> StepPlanner | None:
        """Return the step planner, in the worker that drafts; None in all others."""
        if self.use_v2_model_runner:
            return getattr(self.model_runner.speculator, "planner", None)  # no speculator: another PP stage
        if not get_pp_group().is_last_rank or get_tp_group().rank_in_group != 0:
            return None
        proposer = self.model_runner.drafter
        assert isinstance(proposer, ForestProposer)
        proposer.attach(self.model_runner)
        return proposer.planner

    def _check(self) -> PluginSettings:
        config = self.vllm_config
        runner = ModelRunner(self.use_v2_model_runner)
        spec, wanted = config.speculative_config, runner.speculative_config(DEFAULT_MAX_DRAFT)
        if spec is not None:
            check_lossless(spec)
        if spec is not None and runner.is_v2 and spec.method in MODEL_METHODS:
            from agentspec.vllm_plugin.v2.hybrid import check_draft_model

            check_draft_model(config)
        elif spec is None or any(
            getattr(spec, name) != wanted[name] for name in ("method", "model") if name in wanted
        ):
            raise ConfigError(
                f"with vLLM's model runner {runner.name} this worker needs --speculative-config "
                f"'{json.dumps(wanted)}' (${RUNNER_VARIABLE} chooses the runner)"
                + (f", or a draft model with the method {' or '.join(MODEL_METHODS)}" if runner.is_v2 else "")
            )
        settings = PluginSettings.read(config.additional_config)
        check_version(vllm_version, allows_untested=settings.allow_untested_vllm)
        check_executor(config.parallel_config.distributed_executor_backend)
        if not self.use_v2_model_runner:
            check_pipeline(config.parallel_config.pipeline_parallel_size)
        check_draft_length(
            spec.num_speculative_tokens, getattr(rejection_sampler, "MAX_SPEC_LEN", MOST_DRAFT_TOKENS)
        )
        return settings

    def _facts(self) -> Answer:
        """Return this worker's members of ``status``."""
        assert self._planner is not None
        return {
            "model_runner": ModelRunner(self.use_v2_model_runner).name,
            "async_scheduling": self._is_asynchronous(),
            "propose_us": self._planner.timing.microseconds(),
            "draft_us": self._planner.drafter.timing.microseconds(),
        }

    def _samples_at_once(self, scheduler_output: SchedulerOutput) -> bool:
        """Return True if ``execute_model`` may sample too, for which vLLM otherwise calls the worker again.

        It may if nothing happens between the two calls: no grammar's masks and no other step. While vLLM
        warms up, it makes both calls itself.
        """
        is_step_by_step = (
            not self._is_asynchronous() and self.vllm_config.parallel_config.pipeline_parallel_size == 1
        )
        return self._is_warm and is_step_by_step and not scheduler_output.has_structured_output_requests

    def _is_asynchronous(self) -> bool:
        return bool(self.vllm_config.scheduler_config.async_scheduling)

    def _file_suffix(self) -> str:
        """Return the suffix of the forest's file: each replica of a server has its own forest and file."""
        index = self.vllm_config.parallel_config.data_parallel_index
        return f".{index}" if index else ""
