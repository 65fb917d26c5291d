// Tree drafts by the learned rule.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/context_view.hpp"
#include "core/drafting/drafter.hpp"
#include "core/drafting/scored_token.hpp"

namespace agentspec {

/// Drafts the most probable next tokens, best first, over the union of the suffix trees. Each suffix tree is
/// read with its longest context and with a shorter one that has more evidence. The shorter context adds
/// alternatives where the longest has little evidence. A token that follows a context at least two thirds as
/// long as the longest is judged by such contexts alone. Keeps only scratch memory between calls.
class LearnedTree {
 public:
  /// Fills `draft` and `scored`, which must be empty. `before` is the last token (-1: none). `own` is asked
  /// for every candidate. O(drafted tokens * (chain of `own` + trees * (candidates + children of contexts
  /// with few of them))). Throws std::bad_alloc.
  void draft(const ContextViews& views, const OwnText& own, std::int32_t before, const AcceptanceModel& model,
             const DraftOptions& options, DraftTokens& draft, std::vector<ScoredToken>& scored);

 private:
  struct ContextPair {  // contexts of one suffix tree at a place
    const Automaton* automaton;
    std::size_t tree;
    Cursor longest;                   // longest context that a token has followed; length 0: none
    Cursor shorter;                   // longest shorter one with much more evidence; length 0: none
    std::uint32_t total = 0;          // continued occurrences of the longest
    std::uint32_t shorter_total = 0;  // of the shorter one
  };
  struct Place {
    std::array<ContextPair, Evidence::kNumTrees> pairs;  // of the existing suffix trees
    std::size_t num_pairs = 0;
    OwnText own;
    std::int32_t before = -1;  // the token before it
    double prob = 1;           // D of the token that leads here
    std::int32_t node = -1;    // that token's index in the draft
    std::uint8_t depth = 0;

    std::span<ContextPair> all() { return std::span(pairs).first(num_pairs); }
    std::span<const ContextPair> all() const { return std::span(pairs).first(num_pairs); }
  };
  struct Candidate {  // element of a draft's frontier
    double prob;
    std::uint32_t scored;
    std::uint32_t place;

    bool operator<(const Candidate& other) const {  // true if drafted later
      return prob != other.prob ? prob < other.prob : scored > other.scored;
    }
  };

  void expand(std::uint32_t place, const AcceptanceModel& model, double min_prob,
              std::vector<ScoredToken>& scored);
  static Place make_root(const ContextViews& views, const OwnText& own, std::int32_t before);
  static void look(ContextPair& pair);
  void propose(const Place& place);
  void propose(std::int32_t token);
  void propose(const Automaton& automaton, StateId context, std::size_t most);
  static Evidence evidence_for(const Place& place, std::int32_t token);
  static Origin origin_of(const Place& place, std::int32_t token);
  static void follow(Place& place, std::int32_t token, double prob, std::int32_t node);

  std::vector<Place> places_;
  std::vector<std::int32_t> proposed_;
  std::vector<double> estimates_;
  std::vector<Candidate> frontier_;  // a heap
  std::vector<std::pair<std::uint32_t, std::int32_t>> children_;
};

}  // namespace agentspec
