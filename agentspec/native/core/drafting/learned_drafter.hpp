// Drafts from all trees at once, by what each token's chances are.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/learned_chain.hpp"
#include "core/drafting/learned_tree.hpp"

namespace agentspec {

/// A tree, and the longest suffix of the text so far that occurs in it (settled; of length 0: none).
struct Witness {
  const Automaton* automaton = nullptr;
  Cursor match;
};
using Witnesses = std::array<Witness, Evidence::kNumTrees>;

/// D(N), the product of the estimates from the root to N, is the probability that N is accepted, so that the
/// sum is the expected number of accepted tokens. Drafting ends where no D(N) is at least options.min_prob:
/// that is the price of verifying a token, in accepted tokens. alpha and doubt are not looked at. Keeps only
/// scratch memory between calls.
class LearnedDrafter {
 public:
  /// Replaces `draft` and `considered`; `before` are the last tokens of the text. Both are empty where no
  /// match has options.min_match tokens, or memory runs out. Returns the tree that proposed the first token,
  /// kNumTrees if none did.
  std::size_t draft(const Witnesses& witnesses, std::span<const std::int32_t> before,
                    const AcceptanceModel& model, const DraftOptions& options, DraftTokens& draft,
                    std::vector<Considered>& considered) noexcept;

 private:
  static Readings read(const Witnesses& witnesses);
  static std::size_t proposer_of(const Readings& readings, std::int32_t token);

  LearnedTree tree_;
};

}  // namespace agentspec
