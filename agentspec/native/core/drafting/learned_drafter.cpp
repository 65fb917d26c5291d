#include "core/drafting/learned_drafter.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace agentspec {

std::size_t LearnedDrafter::draft(const Witnesses& witnesses, std::span<const std::int32_t> text,
                                  const AcceptanceModel& model, const DraftOptions& options,
                                  DraftTokens& draft, std::vector<Considered>& considered) noexcept {
  draft.clear();
  considered.clear();
  const Readings readings = read(witnesses);
  draft.match_length = readings.longest();
  if (options.max_tokens == 0 || draft.match_length < std::max(options.min_match, 1u))
    return Evidence::kNumTrees;
  std::array<std::int32_t, 2> before{-1, -1};
  for (std::size_t i = 0; i < std::min(text.size(), before.size()); ++i)
    before[i] = text[text.size() - 1 - i];
  try {
    options.is_tree ? tree_.draft(readings, before, model, options, draft, considered)
                    : draft_chain(readings, before, model, options, draft, considered);
    return draft.token_ids.empty() ? Evidence::kNumTrees : proposer_of(readings, draft.token_ids.front());
  } catch (const std::bad_alloc&) {
    draft.clear();
    considered.clear();
    return Evidence::kNumTrees;
  }
}

Readings LearnedDrafter::read(const Witnesses& witnesses) {
  Readings readings;
  for (std::size_t tree = 0; tree < witnesses.size(); ++tree) {
    if (witnesses[tree].automaton == nullptr) continue;
    Reading reading{witnesses[tree].automaton, tree, witnesses[tree].match};
    reading.fall_back();
    readings.add(reading);
  }
  return readings;
}

// Returns the tree with the longest context among those with the token as the best continuation, or among all
// if there are no such trees. The more specific tree wins ties.
std::size_t LearnedDrafter::proposer_of(const Readings& readings, std::int32_t token) {
  std::size_t proposer = Evidence::kNumTrees;
  std::pair<bool, std::uint32_t> best{false, 0};
  for (const Reading& one : readings.all()) {
    if (one.context.length == 0) continue;
    const std::pair claim{one.best_token() == token, one.context.length};
    if (claim > best) std::tie(proposer, best) = std::pair(one.tree, claim);
  }
  return proposer;
}

}  // namespace agentspec
