"""A fleet on paper: what its engines and its store take, whole and cut into shards."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.config import ForestConfig
from agentspec.corpus.corpus import CorpusConfig
from agentspec.corpus.keeper import CPU_SHARE as SNAPSHOT_SHARE
from agentspec.corpus.keeper import EVERY_S, LISTINGS
from agentspec.corpus.learner import TENANTS_EVERY_S
from agentspec.corpus.publisher import BATCH_BYTES
from agentspec.corpus.redis_store import RedisStore
from agentspec.corpus.store import Retention
from lab.scale.costs import Costs

_TOKEN_BYTES = 4
_WAITING_BYTES = 64  # of an output in the outbox, without its tokens
_REMEMBERED_BYTES = 600  # of an output in the memory, without its tokens
_LOOKS_PER_S = 1 / TENANTS_EVERY_S + LISTINGS / EVERY_S  # at the tenants, of learner and snapshot keeper


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that publish at equal rates and learn from all others, through one server. All have one model.

    Attributes:
        costs: measured ones.
        outputs_per_s: of all engines together.
        num_replicas: engines.
        num_tenants: of equal load. All engines serve all of them.
        num_shards: equal parts of the outputs; each has its own log, and each engine publishes to one and
            follows one. 1 is what the code does.
    """

    costs: Costs
    outputs_per_s: float
    num_replicas: int
    num_tenants: int = 1
    num_shards: int = 1

    # ---- an engine ----

    @property
    def outputs_per_replica(self) -> float:
        """Outputs that an engine finishes in a second."""
        return self.outputs_per_s / self.num_replicas

    @property
    def batch_outputs(self) -> float:
        """Outputs of a tenant in a batch: those of a window, as far as they fit."""
        outputs = self.outputs_per_replica / self.num_tenants * RedisStore.window_s
        return max(1.0, min(outputs, BATCH_BYTES / (_WAITING_BYTES + self._output_bytes)))

    @property
    def share_cores(self) -> float:
        """Share of a core of the engine's thread."""
        return self.outputs_per_replica * self.costs.share_us / 1e6

    @property
    def publisher_cores(self) -> float:
        """Share of a core of the publisher's thread."""
        return self.outputs_per_replica * self._of_batch("publish_us_per_output") / 1e6

    @property
    def learnable_tokens_per_s(self) -> float:
        """Tokens of other engines, of the shard."""
        return self._shard_tokens_per_s * (1 - 1 / self.shard_replicas)

    @property
    def learning_cores(self) -> float:
        """Cores that learn all of them: random tokens, in an engine that takes steps."""
        return self.learnable_tokens_per_s * self.costs.learn_us / 1e6

    @property
    def learning_cores_alone(self) -> float:
        """Cores that learn all of them: recorded outputs, in an engine that does nothing else."""
        return self.learnable_tokens_per_s * self._of_batch("learn_us_per_token") / 1e6

    @property
    def learned(self) -> float:
        """Share of the outputs of other engines that the CPU share learns."""
        return min(1.0, CorpusConfig().cpu_share / max(self.learning_cores, 1e-9))

    @property
    def tenant_tree_s(self) -> float:
        """Age of the oldest output in a tenant's tree, if all are learned."""
        return self._held_s(ForestConfig().stage_limit_bytes / self.costs.tenant_tree_bytes)

    @property
    def trees_s(self) -> float:
        """Age of the oldest output if all trees of the tenant have equal times; its budget limits them."""
        return self._held_s(ForestConfig().tenant_limit_bytes / self.costs.trees_bytes)

    @property
    def memory_s(self) -> float:
        """Time in which a repetition is recognized."""
        outputs = CorpusConfig().memory_bytes / (_REMEMBERED_BYTES + self._output_bytes)
        return outputs * self.num_shards / self.outputs_per_s

    # ---- the store ----

    @property
    def entries_per_s(self) -> float:
        """Entries that are written in a second."""
        return self.outputs_per_s / self.batch_outputs

    @property
    def bytes_in_per_s(self) -> float:
        """Bytes that are written."""
        return self.outputs_per_s * self._of_batch("bytes_per_output")

    @property
    def bytes_out_per_s(self) -> float:
        """Bytes that are read if every engine learns all of its shard, its own ones included."""
        return self.bytes_in_per_s * self.num_replicas / self.num_shards

    @property
    def writing_cores(self) -> float:
        """The server's cores for what is written."""
        return self.entries_per_s * self._of_batch("publish_server_us_per_entry") / 1e6

    @property
    def reading_cores(self) -> float:
        """The server's cores if every engine reads all of its shard, many entries at a time."""
        num_read = self.entries_per_s * self.num_replicas / self.num_shards
        return num_read * self._of_batch("learn_server_us_per_entry") / 1e6

    @property
    def looking_cores(self) -> float:
        """The server's cores for looks at its tenants, by all engines."""
        return self.num_replicas * _LOOKS_PER_S * self.costs.look_us(self.num_tenants) / 1e6

    @property
    def log_s(self) -> float:
        """Age of the oldest entry in a tenant's log."""
        return self._logs * Retention().most_bytes / self.bytes_in_per_s

    @property
    def snapshot_s(self) -> float:
        """Time of outputs that a new engine learns from a snapshot."""
        return self._held_s(CorpusConfig().snapshot_bytes / _TOKEN_BYTES)

    @property
    def snapshot_cores(self) -> float:
        """Cores that merge a log into its snapshot; the writer's share is ``SNAPSHOT_SHARE``."""
        return self.outputs_per_s / self._logs * self._of_batch("snapshot_us_per_output") / 1e6

    @property
    def is_merged(self) -> bool:
        """True if snapshots are written as fast as the log grows."""
        return self.snapshot_cores <= SNAPSHOT_SHARE

    @property
    def store_bytes(self) -> float:
        """Bytes that full logs take, without snapshots."""
        return self._logs * Retention().most_bytes

    # ---- shards ----

    def sharded(self) -> Fleet:
        """Return this fleet with the fewest shards with which every engine learns all of its own."""
        for number in range(1, self.num_replicas + 1):
            fleet = Fleet(self.costs, self.outputs_per_s, self.num_replicas, self.num_tenants, number)
            if fleet.learned == 1:
                return fleet
        raise AssertionError("with a shard for each engine nothing is learned from others")

    @property
    def shard_replicas(self) -> int:
        """Engines of a shard, of the largest."""
        return -(-self.num_replicas // self.num_shards)

    @property
    def _logs(self) -> int:
        return self.num_tenants * self.num_shards

    @property
    def _output_bytes(self) -> float:
        return self.costs.tokens_per_output * _TOKEN_BYTES

    @property
    def _shard_tokens_per_s(self) -> float:
        return self.outputs_per_s * self.costs.tokens_per_output / self.num_shards

    def _held_s(self, tokens: float) -> float:
        """Return the time in which a tenant has these tokens in its shard."""
        return tokens * self.num_tenants / self._shard_tokens_per_s

    def _of_batch(self, name: str) -> float:
        return self.costs.of_batch(name, self.batch_outputs)
