"""The C++ source of the shipped prior."""

from __future__ import annotations

import textwrap

import numpy as np

from benchmarks.prior.state import Floats, Learned

_CONTEXT_UNITS, _WEIGHT_UNITS, _CALIBRATION_UNITS = 12, 1000, 10000  # as in acceptance_prior.hpp

_TEMPLATE = """\
// Written by `python -m benchmarks prior`: change that instead.
#include "core/drafting/acceptance_prior.hpp"

namespace agentspec {{
namespace {{

// clang-format off
constexpr std::int8_t kContexts[] = {{
{contexts}
}};
constexpr std::int16_t kWeights[] = {{
{weights}
}};
constexpr std::int16_t kCalibration[] = {{
{calibration}
}};
// clang-format on

}}  // namespace

AcceptancePrior acceptance_prior() {{ return {{kContexts, kWeights, kCalibration}}; }}

}}  // namespace agentspec
"""


def source_of(prior: Learned) -> str:
    """Return the prior as C++."""
    return _TEMPLATE.format(
        contexts=_numbers(prior.contexts * _CONTEXT_UNITS, np.int8),
        weights=_numbers(prior.weights * _WEIGHT_UNITS, np.int16),
        calibration=_numbers(prior.calibration * _CALIBRATION_UNITS, np.int16),
    )


def _numbers(values: Floats, dtype: type[np.integer]) -> str:
    limits = np.iinfo(dtype)
    whole = np.clip(np.rint(values), limits.min, limits.max).astype(int)
    return textwrap.fill(", ".join(map(str, whole.ravel())), 110)
