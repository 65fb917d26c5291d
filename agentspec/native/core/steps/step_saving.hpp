// The time of a decode step, with its drafts and without.
#pragma once

#include <algorithm>
#include <cstddef>

namespace agentspec {

/// One step as each of its decoding requests saw it, and its estimate without drafts.
struct StepSaving {
  double measured_s = 0;  // that the step took, with its drafts
  // A request that gained n tokens would have waited fixed_s + n * per_token_s.
  double fixed_s = 0;
  double per_token_s = 0;

  /// Returns the estimated seconds without drafts for a request that gained `num_tokens` tokens.
  double plain_s(std::size_t num_tokens) const {
    return std::max(0.0, fixed_s + static_cast<double>(num_tokens) * per_token_s);
  }
};

}  // namespace agentspec
