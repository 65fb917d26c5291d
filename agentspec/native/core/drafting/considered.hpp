// What a draft was chosen from, and what is learned once it is known what came.
#pragma once

#include <cstdint>
#include <span>

#include "core/drafting/acceptance_model.hpp"

namespace agentspec {

/// A token that was considered for some place of a draft, whether it was drafted or not.
struct Considered {
  Evidence evidence;
  std::int32_t token;
  std::uint32_t place;     // those of one place lie side by side
  std::uint32_t next = 0;  // where those of the place after this token begin; 0: it was not followed further
};

/// Lets the model learn from what came instead of, or after, the tokens considered: of each place that was
/// reached, which one was right. O(considered of these places).
void learn_from(std::span<const Considered> considered, std::span<const std::int32_t> tokens,
                AcceptanceModel& model);

}  // namespace agentspec
