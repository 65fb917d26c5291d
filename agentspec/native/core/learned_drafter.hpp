// Drafts from all trees at once, by what each token's chances are.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/acceptance_model.hpp"
#include "core/automaton.hpp"
#include "core/drafter.hpp"

namespace agentspec {

/// A tree, and the longest suffix of the text so far that occurs in it (settled; of length 0: none).
struct Witness {
  const Automaton* automaton = nullptr;
  Cursor match;
};
using Witnesses = std::array<Witness, Evidence::kNumTrees>;

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

/// Keeps only scratch memory between calls.
///
/// A chain takes the most probable token at every place, a tree the most probable of all that could come next
/// (best first, as Algorithm 1, but over the union of the trees). D(N), the product of the estimates from the
/// root to N, is the probability that N is accepted, so that the sum is the expected number of accepted
/// tokens. Drafting ends where no D(N) is at least options.min_prob: that is the price of verifying a token,
/// in accepted tokens. alpha and doubt are not looked at.
class LearnedDrafter {
 public:
  /// Replaces `draft` and `considered`; `before` are the last tokens of the text. Both are empty where no
  /// match has options.min_match tokens, or memory runs out. O(drafted tokens * trees * candidates), for
  /// trees times the children of contexts with few of them. Returns the tree that proposed the first token,
  /// kNumTrees if none did.
  std::size_t draft(const Witnesses& witnesses, std::span<const std::int32_t> before,
                    const AcceptanceModel& model, const DraftOptions& options, DraftTokens& draft,
                    std::vector<Considered>& considered) noexcept;

 private:
  struct View {  // of one tree on a place
    const Automaton* automaton;
    std::size_t tree;
    Cursor longest;                   // context that something has followed; of length 0: there is none
    Cursor shorter;                   // the longest other one with much more evidence; of length 0: likewise
    std::uint32_t total = 0;          // continued occurrences of the longest
    std::uint32_t shorter_total = 0;  // of the other
  };
  struct Place {
    std::array<View, Evidence::kNumTrees> views;  // of the trees that there are
    std::size_t num_views = 0;
    std::array<std::int32_t, 2> before{-1, -1};  // the last token first
    double prob = 1;                             // D of the token that leads here
    std::int32_t node = -1;                      // its place in the draft
    std::uint8_t depth = 0;

    std::span<View> all() { return std::span(views).first(num_views); }
    std::span<const View> all() const { return std::span(views).first(num_views); }
  };
  struct Candidate {  // of a tree's frontier
    double prob;
    std::uint32_t considered;
    std::uint32_t place;

    bool operator<(const Candidate& other) const {  // drafted later
      return prob != other.prob ? prob < other.prob : considered > other.considered;
    }
  };

  void draft_chain(const AcceptanceModel& model, const DraftOptions& options, DraftTokens& draft,
                   std::vector<Considered>& considered);
  void draft_tree(const AcceptanceModel& model, const DraftOptions& options, DraftTokens& draft,
                  std::vector<Considered>& considered);
  void expand(std::uint32_t place, const AcceptanceModel& model, double min_prob,
              std::vector<Considered>& considered);
  static Place make_root(const Witnesses& witnesses, std::span<const std::int32_t> before);
  static void look(View& view);
  void propose(const Place& place, bool is_tree);
  void propose(std::int32_t token);
  void propose(const Automaton& automaton, StateId context, std::size_t most);
  static Evidence evidence_for(const Place& place, std::int32_t token);
  static void follow(Place& place, std::int32_t token, double prob, std::int32_t node);
  static std::size_t proposer_of(const Place& root, std::int32_t token);

  std::vector<Place> places_;
  std::size_t last_ = 0;  // considered that was drafted last
  std::vector<std::int32_t> proposed_;
  std::vector<double> estimates_;
  std::vector<Candidate> frontier_;  // a heap
  std::vector<std::pair<std::uint32_t, std::int32_t>> children_;
};

}  // namespace agentspec
