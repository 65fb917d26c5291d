"""vLLM's worker, extended to report steps and requests to what drafts for them.

``--worker-cls agentspec.vllm_plugin.worker.AgentSpecWorker``
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from vllm import __version__ as vllm_version
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform
from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds, ModelRunnerOutput
from vllm.v1.sample import rejection_sampler

from agentspec.errors import ConfigError
from agentspec.vllm_plugin import cpu_kernels
from agentspec.vllm_plugin.advice import advice
from agentspec.vllm_plugin.commands import Answer, Commands
from agentspec.vllm_plugin.cores import cores_of_parent
from agentspec.vllm_plugin.draft_slots import DRAFTS, LATE_DRAFTS
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.grammar_drafts import DICTATED
from agentspec.vllm_plugin.lossless import check_lossless
from agentspec.vllm_plugin.model_runner import (
    DEFAULT_MAX_DRAFT,
    MODEL_METHODS,
    RUNNER_VARIABLE,
    ModelRunner,
)
from agentspec.vllm_plugin.planner import LONGEST_STEP_S, PLANNER, StepPlanner
from agentspec.vllm_plugin.proposer import ForestProposer
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.undrafted_steps import UndraftedSteps
from agentspec.vllm_plugin.versions import (
    MOST_DRAFT_TOKENS,
    check_draft_length,
    check_executor,
    check_pipeline,
    check_version,
    parse,
)

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class Steps(Protocol):
    """What takes part in the steps: :class:`ForestProposer` or :class:`StepPlanner`."""

    drafter: ForestDrafter

    def begin_step(self, scheduler_output: SchedulerOutput) -> None:
        """Begin a step."""

    def start(self, new_requests: list[Any]) -> None:
        """Start requests that the runner knows now."""


class AgentSpecWorker(PlatformWorker):  # type: ignore[misc]
    """The platform's worker, with a forest next to its model."""

    _steps: Steps | None = None  # in the one worker that drafts
    _commands: Commands | None = None
    _is_warm = False
    _num_asked = 0

    def init_device(self) -> None:
        """Make the model runner. Raises ConfigError if the plugin can't work here."""
        settings = self._check()
        if self.use_v2_model_runner:
            from agentspec.vllm_plugin import ragged_graphs, speculator

            method = self.vllm_config.speculative_config.method
            speculator.install(settings.draft_model_tokens if method in MODEL_METHODS else 0)
            if settings.ragged_graphs:
                ragged_graphs.install(lambda: self.model_runner.attn_groups)
        super().init_device()

    def load_model(self, **options: Any) -> None:
        """Load the model, then the saved forest, or join the corpus."""
        if current_platform.is_cpu():
            cpu_kernels.repair()
        super().load_model(**options)
        if not self.use_v2_model_runner:
            UndraftedSteps(self.model_runner)
        self._steps = self._planner() if self.use_v2_model_runner else self._proposer()
        if self._steps is None:
            return
        drafter = self._steps.drafter
        for hint in self._advice(drafter.num_draft_tokens):
            logger.warning("%s", hint)
        self._commands = Commands(drafter, self._file_suffix(), self._facts)
        with cores_of_parent() if current_platform.is_cpu() else nullcontext():
            drafter.forest.start_threads()
            self._commands.restore()
            drafter.open_corpus()
        if drafter.settings.forest_file and not self.vllm_config.shutdown_timeout:
            logger.warning(
                "without --shutdown-timeout vLLM kills this process at shutdown: outputs learned after the "
                "last regular save will be lost"
            )

    def compile_or_warm_up_model(self) -> Any:
        """Warm up. vLLM runs made-up requests here, of which nothing may be learned."""
        steps, self._steps = self._steps, None
        try:
            return super().compile_or_warm_up_model()
        finally:
            self._steps = steps
            self._is_warm = True

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run one step, and report its requests before and after."""
        steps = self._steps
        if steps is not None:
            steps.begin_step(scheduler_output)
            if not self.use_v2_model_runner:
                runner = self.model_runner
                # otherwise one request near the end of its context stops all drafts; each has a limit here
                runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens + 1
        output = super().execute_model(scheduler_output)
        if steps is not None:
            steps.start(scheduler_output.scheduled_new_reqs)
        if output is None and self._samples_at_once(scheduler_output):
            return self.sample_tokens(None)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample. The output takes the drafts along, where the scheduler waits for them."""
        if isinstance(self._steps, StepPlanner):
            self._steps.expect(getattr(grammar_output, DICTATED, None))
        output = super().sample_tokens(grammar_output)
        if output is not None and self._is_warm and self._is_step_by_step():
            take_along(output, self._drafts)
        return output

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return the drafts for the scheduler, if they did not come with the output."""
        self._num_asked += 1
        return self._drafts()

    def _drafts(self) -> DraftTokenIds | None:
        drafts = super().take_draft_token_ids()
        steps = self._steps
        if drafts is None or not isinstance(steps, StepPlanner) or self._is_asynchronous():
            return drafts
        lengths = steps.last_lengths(LONGEST_STEP_S)
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

    def _proposer(self) -> ForestProposer | None:
        """Return what drafts for the runner V1, in the worker that vLLM takes drafts from."""
        if not get_pp_group().is_last_rank or get_tp_group().rank_in_group != 0:
            return None
        proposer = self.model_runner.drafter
        assert isinstance(proposer, ForestProposer)
        proposer.attach(self.model_runner)
        return proposer

    def _planner(self) -> StepPlanner | None:
        """Return what drafts for the runner V2, in the worker that has it."""
        speculator = self.model_runner.speculator  # None on all pipeline stages but the last
        planner: StepPlanner | None = getattr(speculator, PLANNER, None)
        return planner

    def _check(self) -> PluginSettings:
        config = self.vllm_config
        runner = ModelRunner(self.use_v2_model_runner)
        spec, wanted = config.speculative_config, runner.speculative_config(DEFAULT_MAX_DRAFT)
        if spec is not None:
            check_lossless(spec)
        if spec is not None and runner.is_v2 and spec.method in MODEL_METHODS:
            from agentspec.vllm_plugin.hybrid import check_draft_model

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

    def _advice(self, num_draft_tokens: int) -> list[str]:
        config = self.vllm_config
        return advice(
            parse(vllm_version),
            num_draft_tokens,
            is_hybrid=config.model_config.is_hybrid,
            vocab_size=config.model_config.get_vocab_size(),
            num_workers=config.parallel_config.tensor_parallel_size,
        )

    def _facts(self) -> Answer:
        """Return what ``status`` shows of this worker."""
        runner = ModelRunner(self.use_v2_model_runner)
        facts: Answer = {
            "model_runner": runner.name,
            "async_scheduling": self._is_asynchronous(),
            "num_draft_calls": self._num_asked,
        }
        if isinstance(self._steps, StepPlanner):
            timing = self._steps.drafter.timing.microseconds()
            facts |= {"propose_us": self._steps.timing.microseconds(), "draft_us": timing}
        return facts

    def _samples_at_once(self, scheduler_output: SchedulerOutput) -> bool:
        """Return whether ``execute_model`` may sample too, which vLLM asks for by another call of the worker.

        It may if nothing happens between the two calls: no masks of a grammar are made, and no other step.
        While vLLM warms up, it makes both calls itself.
        """
        return (
            self._is_warm and self._is_step_by_step() and not scheduler_output.has_structured_output_requests
        )

    def _is_step_by_step(self) -> bool:
        """Return whether each step is scheduled after the output of the one before."""
        return not self._is_asynchronous() and self.vllm_config.parallel_config.pipeline_parallel_size == 1

    def _is_asynchronous(self) -> bool:
        return bool(self.vllm_config.scheduler_config.async_scheduling)

    def _file_suffix(self) -> str:
        """Return the suffix of the forest's file: each replica of a server has its own forest and file."""
        index = self.vllm_config.parallel_config.data_parallel_index
        return f".{index}" if index else ""


def take_along(
    output: ModelRunnerOutput | AsyncModelRunnerOutput, drafts: Callable[[], DraftTokenIds | None]
) -> None:
    """Attach the drafts for the next step to an output; with model runner V2, once it is waited for.

    With V1 it attaches None if all drafts are empty: the scheduler drops drafts when it schedules them.
    """
    if isinstance(output, AsyncModelRunnerOutput):
        setattr(output, LATE_DRAFTS, drafts)
    elif output.req_ids:  # otherwise it may be vLLM's one empty output, which many steps share
        made = drafts()
        setattr(output, DRAFTS, made if made is not None and any(made.draft_token_ids) else None)
