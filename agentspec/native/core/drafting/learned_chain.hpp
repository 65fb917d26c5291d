// Chain drafts by the learned rule.
#pragma once

#include <cstdint>
#include <vector>

#include "core/drafting/context_view.hpp"
#include "core/drafting/drafter.hpp"
#include "core/drafting/scored_token.hpp"

namespace agentspec {

/// Adds the most probable token at every place to `draft`, and the candidates to `scored`. Both must be
/// empty. `before` is the last token (-1: none).
///
/// Only trees with a context at least two thirds as long as the longest are read; the evidence of the others
/// is mostly noise. From the stage's tree on, a wider tree is skipped if a narrower one has an equally long
/// context that was continued often enough. A tree that is skipped, or that lacks the drafted token, is not
/// read for the rest of the draft. Candidates are the trees' best tokens and, where none of these is likely
/// enough, their second ones. `own` is asked for every candidate. O(drafted tokens * trees * (chain of `own`
/// + children of contexts with few of them)). Throws std::bad_alloc.
void draft_chain(ContextViews views, OwnText own, std::int32_t before, const AcceptanceModel& model,
                 const DraftOptions& options, DraftTokens& draft, std::vector<ScoredToken>& scored);

}  // namespace agentspec
