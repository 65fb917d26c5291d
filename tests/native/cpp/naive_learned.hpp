// A naive LearnedDrafter: contexts are looked up anew for every place.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/drafting/acceptance_model.hpp"
#include "naive_index.hpp"

namespace agentspec {

/// Scored tokens of the places of a draft, by the drafted tokens that lead there.
using NaiveScores =
    std::map<std::vector<std::int32_t>, std::vector<std::pair<std::int32_t, Evidence>>>;

class NaiveLearned {
 public:
  using Trees = std::array<const NaiveIndex*, Evidence::kNumTrees>;

  /// The request's own tree knows its `text`, the others its `output`.
  NaiveLearned(const Trees& trees, TokenSpan text, TokenSpan output, const AcceptanceModel& model,
               const DraftOptions& options);

  NaiveDraft draft;
  NaiveScores scored;
  std::size_t tree = Evidence::kNumTrees;  // the tree that proposed the first token

 private:
  struct Leaf {
    double prob;
    std::vector<std::int32_t> path;  // drafted tokens up to this leaf
    std::int32_t parent;
  };
  struct TreeContexts {  // the contexts of one tree at a place
    std::size_t index;
    const NaiveIndex* tree;
    const Context* longest;
    const Context* shorter;
    std::vector<Context> suffixes;
  };

  std::array<TreeContexts, Evidence::kNumTrees> contexts_of(const std::vector<std::int32_t>& path) const;
  std::array<TreeContexts, Evidence::kNumTrees> long_ones_of(const std::vector<std::int32_t>& path);
  void leave_out_strangers_to(std::int32_t token, const std::vector<std::int32_t>& path);
  std::vector<std::pair<std::int32_t, double>> expand(const std::vector<std::int32_t>& path);
  static std::array<bool, Evidence::kNumTrees> witnesses_of(
      const std::array<TreeContexts, Evidence::kNumTrees>& contexts, std::int32_t token);
  Evidence evidence_for(const std::array<TreeContexts, Evidence::kNumTrees>& contexts,
                        const std::vector<std::int32_t>& path, std::int32_t token) const;
  void add_own(const std::vector<std::int32_t>& path, std::int32_t token,
               const std::array<TreeContexts, Evidence::kNumTrees>& contexts, Evidence& evidence) const;
  void draft_chain();
  void draft_tree();
  void name_tree();

  const Trees& trees_;
  TokenSpan text_;
  TokenSpan output_;
  const AcceptanceModel& model_;
  DraftOptions options_;
  std::array<bool, Evidence::kNumTrees> is_left_out_{};  // of a chain
};

/// Learns from the tokens that followed: which of the scored ones were right.
void learn_naively(const NaiveScores& scored, TokenSpan tokens, AcceptanceModel& model);

}  // namespace agentspec
