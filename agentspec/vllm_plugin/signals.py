"""Messages between the plug-in's scheduler and worker. Does not import vLLM.

Scheduler and worker may be two processes. The plug-in adds one object to vLLM's own messages, as an
attribute. vLLM pickles messages with all their attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NAME = "agentspec"  # the attribute of vLLM's messages


class Drafted(NamedTuple):
    """The drafts of a step for the next one, as needed by the scheduler.

    Attributes:
        names: request of each row.
        lengths: draft tokens of each row, without padding.
        acceptance: float32 ``[rows, K]``: probability that the draft tokens up to each position are all
            accepted; 0 for padding.
        price: least probability of acceptance with which a token was drafted.
    """

    names: list[str]
    lengths: list[int]
    acceptance: NDArray[np.float32]
    price: float


@dataclass(frozen=True, slots=True)
class Signal:
    """The object that a message carries.

    Attributes:
        drafted: from the worker, with vLLM's ``ModelRunnerOutput``.
        dictated: from the scheduler, with vLLM's ``GrammarOutput``: by request, the draft that this step
            verifies, followed by the tokens that the grammar dictates.
    """

    drafted: Drafted | None = None
    dictated: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def attach(self, message: Any) -> None:
        """Attach this signal to a vLLM message."""
        setattr(message, NAME, self)

    @classmethod
    def of(cls, message: Any) -> Signal:
        """Return the signal of a message; an empty one if the message has none."""
        signal = getattr(message, NAME, None)
        return signal if isinstance(signal, cls) else cls()
