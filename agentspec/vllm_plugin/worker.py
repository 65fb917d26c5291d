"""vLLM's worker, extended to report steps and requests to the proposer.

``--worker-cls agentspec.vllm_plugin.worker.AgentSpecWorker``
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from agentspec.errors import ConfigError
from agentspec.vllm_plugin import cpu_kernels
from agentspec.vllm_plugin.commands import Commands
from agentspec.vllm_plugin.proposer import ForestProposer
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.versions import (
    MOST_DRAFT_TOKENS,
    check_draft_length,
    check_pipeline,
    check_version,
)

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class AgentSpecWorker(PlatformWorker):  # type: ignore[misc]
    """The platform's worker, with a forest next to its model."""

    _proposer: ForestProposer | None = None
    _commands: Commands | None = None

    def load_model(self, **options: Any) -> None:
        """Load the model, then the saved forest. Raises ConfigError if the plugin can't work here."""
        self._check()
        if current_platform.is_cpu():
            cpu_kernels.repair()
        super().load_model(**options)
        proposer = getattr(self.model_runner, "drafter", None)
        if not isinstance(proposer, ForestProposer):
            raise ConfigError(
                "this vLLM runs its model runner V2, which takes no proposer: unset VLLM_USE_V2_MODEL_RUNNER"
            )
        if not get_pp_group().is_last_rank or get_tp_group().rank_in_group != 0:
            return  # vLLM takes drafts from one worker only
        proposer.attach(self.model_runner)
        self._proposer = proposer
        self._commands = Commands(proposer, self._file_suffix())
        self._commands.restore()
        if proposer.settings.forest_file and not self.vllm_config.shutdown_timeout:
            logger.warning(
                "without --shutdown-timeout vLLM kills this process at shutdown: outputs learned after the "
                "last regular save will be lost"
            )

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run one step, and notify the proposer before and after it."""
        proposer = self._proposer
        if proposer is None:
            return super().execute_model(scheduler_output)
        proposer.begin_step(scheduler_output)
        runner = self.model_runner
        # otherwise one request near the end of its context stops all drafts; the proposer limits each request
        runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens + 1
        output = super().execute_model(scheduler_output)
        proposer.start(scheduler_output.scheduled_new_reqs)
        return output

    def agentspec_control(self, command: str, arguments: str) -> str | None:
        """Run a command of the control channel (``control``) and return its JSON; None without a forest."""
        return None if self._commands is None else self._commands.run(command, arguments)

    def shutdown(self) -> None:
        """Save the forest if it has a file, then shut down."""
        if self._commands is not None:
            self._commands.close()
        super().shutdown()

    def _check(self) -> None:
        spec = self.vllm_config.speculative_config
        path = f"{ForestProposer.__module__}.{ForestProposer.__qualname__}"
        if spec is None or spec.method != "custom_class" or spec.model != path:
            raise ConfigError(
                "this worker needs --speculative-config "
                f'\'{{"method": "custom_class", "model": "{path}", "num_speculative_tokens": 32}}\''
            )
        settings = PluginSettings.read(self.vllm_config.additional_config)
        check_version(vllm_version, allows_untested=settings.allow_untested_vllm)
        check_pipeline(self.vllm_config.parallel_config.pipeline_parallel_size)
        check_draft_length(
            spec.num_speculative_tokens, getattr(rejection_sampler, "MAX_SPEC_LEN", MOST_DRAFT_TOKENS)
        )

    def _file_suffix(self) -> str:
        """Return the suffix of the forest's file: each replica of a server has its own forest and file."""
        index = self.vllm_config.parallel_config.data_parallel_index
        return f".{index}" if index else ""
