"""The native core's Python face; see the docstrings of the extension for complexities."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Source

class SuffixIndex:
    """A suffix index over int32 sequences; every method is safe from several threads."""

    def __init__(self, depth: int, limit_bytes: int = ...) -> None: ...
    def open_sequence(self, uses: int = 1) -> int: ...
    def append(self, sequence: int, tokens: NDArray[np.int32]) -> bool: ...
    def close_sequence(self, sequence: int) -> None: ...
    def remove_sequence(self, sequence: int) -> None: ...
    def evict(self, num_tokens: int) -> int: ...
    def count(self, tokens: NDArray[np.int32]) -> int: ...
    def draft_chain(
        self,
        context: NDArray[np.int32],
        max_tokens: int = 32,
        alpha: float = 4.0,
        min_match: int = 1,
        min_prob: float = 0.1,
        doubt: float = 0.0,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], float, int]: ...
    def draft_tree(
        self,
        context: NDArray[np.int32],
        max_tokens: int = 32,
        alpha: float = 4.0,
        min_match: int = 1,
        min_prob: float = 0.1,
        doubt: float = 0.0,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], float, int]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_states(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def enforce(self, limit_bytes: int) -> None: ...
    def check_integrity(self) -> None: ...

class DraftOptions:
    """How one request is drafted for; max_tokens = 0: not at all."""

    def __init__(
        self,
        is_tree: bool,
        max_tokens: int,
        alpha: float,
        min_match: int,
        min_prob: float,
        doubt: float = 0.0,
    ) -> None: ...

BatchDrafts = tuple[
    NDArray[np.int32],  # token_ids
    NDArray[np.int32],  # parents
    NDArray[np.float32],  # probs
    NDArray[np.int64],  # offsets
    NDArray[np.float64],  # scores
    NDArray[np.int32],  # match_lengths
    NDArray[np.uint8],  # sources
]

class DraftMaker:
    """Makes agentspec.Draft objects of what the core drafts."""

    def __init__(self, draft: type[Draft], sources: tuple[Source, ...]) -> None: ...

MODEL_BYTES: int  # of what create_model() makes

class ForestCore:
    """Live requests and shared indices by integer ids. Safe from several threads."""

    def __init__(self, depth: int, limit_bytes: int, threads: int = 1) -> None: ...
    def create_group(self, limit_bytes: int) -> int: ...
    def create_index(self, group: int, limit_bytes: int, weight: int = 1) -> int: ...
    def drop_index(self, index: int) -> None: ...
    def create_model(self, group: int, prior: int | None = None) -> int: ...
    def drop_model(self, model: int) -> None: ...
    def learn(self, indices: NDArray[np.uint64], tokens: NDArray[np.int32], uses: int = 1) -> None: ...
    def read_outputs(
        self, index: int, is_begin: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.uint32], NDArray[np.uint32]]: ...
    def model_state(self, model: int) -> bytes: ...
    def restore_model(self, group: int, state: bytes) -> int: ...
    @staticmethod
    def check_model_state(state: bytes) -> None: ...
    def start(
        self,
        request: int,
        group: int,
        prompt: NDArray[np.int32],
        prediction: NDArray[np.int32],
        indices: NDArray[np.uint64],
        sources: NDArray[np.uint8],
        learn: bool,
        options: DraftOptions,
        in_background: bool = False,
        model: int | None = None,
    ) -> None: ...
    def wait(self, request: int) -> None: ...
    def step(
        self,
        requests: NDArray[np.uint64],
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        max_tokens: int,
        min_prob: float = 0.0,
    ) -> BatchDrafts: ...
    def step_named(
        self,
        requests: Mapping[str, object],
        updates: list[tuple[str, NDArray[np.int32]]],
        max_tokens: int,
        min_prob: float,
        maker: DraftMaker,
    ) -> list[Draft] | None: ...
    def observe(
        self, requests: NDArray[np.uint64], tokens: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> None: ...
    def finish(self, request: int, keep: bool) -> None: ...
    def index_bytes(self, index: int) -> int: ...
    def group_bytes(self, group: int) -> int: ...
    def memory_bytes(self) -> int: ...
    def index_size(self, index: int) -> tuple[int, int]: ...
    def num_requests(self) -> int: ...
    def check_integrity(self) -> None: ...
