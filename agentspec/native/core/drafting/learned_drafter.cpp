#include "core/drafting/learned_drafter.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace agentspec {

std::size_t LearnedDrafter::draft(const TreeMatches& matches, std::int32_t before,
                                  const AcceptanceModel& model, const DraftOptions& options,
                                  DraftTokens& draft, std::vector<ScoredToken>& scored) noexcept {
  draft.clear();
  scored.clear();
  const ContextViews views = read(matches);
  draft.match_length = views.longest();
  if (options.max_tokens == 0 || draft.match_length < std::max(options.min_match, 1u))
    return Evidence::kNumTrees;
  try {
    const OwnText own(matches[Evidence::kOwnTree].automaton, matches[Evidence::kOwnTree].match);
    options.is_tree ? tree_.draft(views, own, before, model, options, draft, scored)
                    : draft_chain(views, own, before, model, options, draft, scored);
    return draft.token_ids.empty() ? Evidence::kNumTrees : proposer_of(views, draft.token_ids.front());
  } catch (const std::bad_alloc&) {
    draft.clear();
    scored.clear();
    return Evidence::kNumTrees;
  }
}

ContextViews LearnedDrafter::read(const TreeMatches& matches) {
  ContextViews views;
  for (std::size_t tree = 0; tree < matches.size(); ++tree) {
    if (matches[tree].automaton == nullptr) continue;
    ContextView view{matches[tree].automaton, tree, matches[tree].match};
    view.fall_back();
    views.add(view);
  }
  return views;
}

// Returns the tree with the longest context among those with the token as the best continuation, or among all
// if there are no such trees. The more specific tree wins ties.
std::size_t LearnedDrafter::proposer_of(const ContextViews& views, std::int32_t token) {
  std::size_t proposer = Evidence::kNumTrees;
  std::pair<bool, std::uint32_t> best{false, 0};
  for (const ContextView& one : views.all()) {
    if (one.context.length == 0) continue;
    const std::pair claim{one.best_token() == token, one.context.length};
    if (claim > best) std::tie(proposer, best) = std::pair(one.tree, claim);
  }
  return proposer;
}

}  // namespace agentspec
