"""The C++ source of the shipped prior."""

from __future__ import annotations

import textwrap

from lab.prior.state import Integers, Learned, integers

_TEMPLATE = """\
// Written by `python -m lab prior`: change that instead.
#include "core/drafting/acceptance_prior.hpp"

namespace agentspec {{

// clang-format off
constinit const AcceptancePrior kAcceptancePrior{{
.contexts = {{
{contexts}
}},
.weights = {{
{weights}
}},
.calibration = {{
{calibration}
}}}};
// clang-format on

}}  // namespace agentspec
"""


def source_of(prior: Learned) -> str:
    """Return the prior as C++."""
    contexts, weights, calibration = map(_numbers, integers(prior))
    return _TEMPLATE.format(contexts=contexts, weights=weights, calibration=calibration)


def _numbers(values: Integers) -> str:
    return textwrap.fill(", ".join(map(str, values.ravel())), 110)
