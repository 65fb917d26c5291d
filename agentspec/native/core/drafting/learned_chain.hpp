// Chains of the learned rule.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/drafting/considered.hpp"
#include "core/drafting/drafter.hpp"
#include "core/drafting/reading.hpp"

namespace agentspec {

/// Adds the most probable token at every place to `draft`, and what it was chosen from to `considered`, which
/// are empty. `before` are the last two tokens, the last one first (-1: there is none).
///
/// Only trees whose context is at least two thirds as long as the longest are asked: what the others say is
/// mostly noise. From the stage's tree on, none is asked that is wider than one with an equally long context
/// which it knows well. A tree that is not asked any more, or doesn't know the token drafted, stays out of
/// the draft. O(drafted tokens * trees). Throws std::bad_alloc.
void draft_chain(Readings readings, std::array<std::int32_t, 2> before, const AcceptanceModel& model,
                 const DraftOptions& options, DraftTokens& draft, std::vector<Considered>& considered);

}  // namespace agentspec
