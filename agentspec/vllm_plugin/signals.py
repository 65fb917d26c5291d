"""What the plug-in's scheduler and worker tell each other. Does not import vLLM.

They may be two processes, between which vLLM passes its own messages. The plug-in adds one object to a
message, under one name. vLLM pickles messages with all their attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NAME = "agentspec"  # the attribute of vLLM's messages


class Drafted(NamedTuple):
    """The drafts that a step made for the next one, as the scheduler needs to know them.

    Attributes:
        names: request of each row.
        lengths: draft tokens of each row, without padding.
        acceptance: float32 ``[rows, K]``: the chance that the first draft tokens up to each are all accepted;
            0 for padding.
        price: least chance of acceptance at which a draft token was made.
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
        dictated: from the scheduler, with vLLM's ``GrammarOutput``: output of each request from this step on,
            as far as its grammar dictates it. Begins with the draft that the step verifies.
    """

    drafted: Drafted | None = None
    dictated: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def attach(self, message: Any) -> None:
        """Let a message of vLLM's carry this signal."""
        setattr(message, NAME, self)

    @classmethod
    def of(cls, message: Any) -> Signal:
        """Return the signal that a message carries; an empty one if it carries none."""
        signal = getattr(message, NAME, None)
        return signal if isinstance(signal, cls) else cls()
