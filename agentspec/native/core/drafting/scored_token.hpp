// The candidates that a draft was chosen from, and how the model learns once the following tokens are known.
#pragma once

#include <cstdint>
#include <span>

#include "core/drafting/acceptance_model.hpp"

namespace agentspec {

/// A candidate token for a place of a draft, drafted or not.
struct ScoredToken {
  Evidence evidence;
  std::int32_t token;
  std::uint32_t place;     // candidates of one place are adjacent
  std::uint32_t next = 0;  // index of the first candidate of the place after this token; 0: none
};

/// Trains the model on `tokens`, which followed the text: at each place that was reached, which candidate was
/// right. O(candidates of these places).
std::size_t learn_from(std::span<const ScoredToken> scored, std::span<const std::int32_t> tokens,
                       AcceptanceModel& model);

}  // namespace agentspec
