// Drafts from all trees together, by the learned probability that each token is accepted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/learned_chain.hpp"
#include "core/drafting/learned_tree.hpp"

namespace agentspec {

/// A tree, and the longest suffix of the text so far that occurs in it (settled; length 0: none).
struct TreeMatch {
  const Automaton* automaton = nullptr;
  Cursor match;
};
using TreeMatches = std::array<TreeMatch, Evidence::kNumTrees>;

/// A drafter for the learned rule. D(N), the product of the estimates from the root to N, is the probability
/// that N is accepted. The sum of D(N) is the expected number of accepted tokens. Drafting ends where no D(N)
/// reaches options.min_prob, the cost of verifying a token in accepted tokens. alpha and doubt are ignored.
/// Keeps only scratch memory between calls.
class LearnedDrafter {
 public:
  /// Replaces `draft` and `scored`. `before` is the last token of the text (-1: none). Both are empty if no
  /// match has options.min_match tokens or memory runs out. Returns the tree that proposed the first token,
  /// or kNumTrees for an empty draft.
  std::size_t draft(const TreeMatches& matches, std::int32_t before, const AcceptanceModel& model,
                    const DraftOptions& options, DraftTokens& draft,
                    std::vector<ScoredToken>& scored) noexcept;

 private:
  static ContextViews read(const TreeMatches& matches);
  static std::size_t proposer_of(const ContextViews& views, std::int32_t token);

  LearnedTree tree_;
};

}  // namespace agentspec
