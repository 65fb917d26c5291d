from __future__ import annotations

import pytest

from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject
from agentspec.corpus.erasure import Erasure, Tombstone, repeated
from agentspec.corpus.met_erasures import MetErasures
from tests.corpus.support.replica import output


def late(met: MetErasures) -> list[int]:
    """Return the numbers of own records that are late, of five."""
    batch = Batch(bytes(16), 0, tuple(output([number], "a", subject=b"ann") for number in range(5)))
    return [number for number, _ in met.late(batch)]


@pytest.mark.parametrize("tombstone", [ForgetStage(("a",)), ForgetSubject(b"ann")])
def test_an_erasure_again_is_a_new_one_and_a_repetition_is_not(tombstone: Tombstone) -> None:
    met = MetErasures()
    met.note_applied(Erasure(tombstone), 1, 0.0)
    met.note_applied(Erasure(repeated(tombstone)), 3, 10.0)
    assert late(met) == [0]
    met.note_applied(Erasure(tombstone), 4, 20.0)
    assert late(met) == [0, 1, 2, 3]


def test_a_repetition_of_an_unknown_erasure_counts() -> None:
    met = MetErasures()
    met.note_applied(Erasure(repeated(ForgetStage(("a",)))), 2, 0.0)
    assert late(met) == [0, 1]
