// Drafts by the learned rule: from all trees together, by the learned probability that each token is
// accepted.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/acceptance_model.hpp"
#include "core/drafting/drafter.hpp"
#include "core/drafting/evidence.hpp"
#include "core/index/automaton.hpp"

namespace agentspec {

/// A candidate token for a place of a draft, drafted or not.
struct ScoredToken {
  Evidence evidence;
  std::int32_t token;
  std::uint32_t place;     // candidates of one place are adjacent
  std::uint32_t next = 0;  // index of the first candidate of the place after this token; 0: none
};

/// Trains the model on `tokens`, which followed the text: at each place that was reached, which candidate was
/// right. O(candidates of these places).
void learn_from(std::span<const ScoredToken> scored, std::span<const std::int32_t> tokens,
                AcceptanceModel& model);

struct ContextView {
  const Automaton* automaton;
  std::size_t tree;
  Cursor context;

  std::int32_t best_token() const { return automaton->best_token(context.state); }
  /// Continued occurrences of the context.
  std::uint32_t total() const { return automaton->num_continued(context.state); }
  /// Number of them that the token followed.
  std::uint32_t count(std::int32_t token) const { return count(*automaton, context.state, token); }
  static std::uint32_t count(const Automaton& automaton, StateId context, std::int32_t token) {
    if (automaton.best_token(context) == token) return automaton.count(automaton.best_target(context));
    const StateId child = automaton.child(context, token);
    return child == kNoState ? 0 : automaton.count(child);
  }
  /// Falls back to the longest suffix that a token has followed; length 0 if there is no such suffix.
  void fall_back() { context = automaton->fall_back(context); }
};

/// The request's own text at a place of a draft.
class OwnText {
 public:
  OwnText() = default;
  /// `match`: the longest suffix that occurs in it.
  OwnText(const Automaton* automaton, Cursor match) : automaton_(automaton), context_(match) { settle(); }

  /// Adds the text's evidence for a token that trees propose. Their longest context has `of_all` tokens.
  /// Looks up the token in a few contexts.
  void tell(std::int32_t token, std::uint32_t of_all, Evidence& evidence) const {
    if (automaton_ == nullptr) return;
    evidence.add_own(length_before(token), context_.length, of_all);
  }
  /// Continues the text by a token of the draft. O(chain).
  void follow(std::int32_t token) {
    if (automaton_ == nullptr) return;
    context_ = automaton_->advance(context_, token);
    settle();
  }
  /// The same, if a view of the text has followed the token already, to `context`.
  void follow_to(Cursor context) {
    context_ = context;
    settle();
  }

 private:
  void settle() {
    if (automaton_ == nullptr) return;
    context_ = automaton_->fall_back(context_);
  }
  /// Length of the longest context that the token has followed, of which kMostOwnLength tokens count; -1 if
  /// it does not occur. A token that follows a context follows its suffixes, too.
  int length_before(std::int32_t token) const {
    StateId state = context_.state;
    if (automaton_->best_token(state) == token) return static_cast<int>(context_.length);
    while (state != kRoot && automaton_->length(automaton_->link(state)) >= Evidence::kMostOwnLength)
      state = automaton_->link(state);  // a shorter suffix that counts as much
    if (follows(state, token)) return static_cast<int>(context_.length);
    if (state == kRoot || !follows(kRoot, token)) return -1;
    state = automaton_->link(state);
    while (!follows(state, token)) state = automaton_->link(state);
    return static_cast<int>(automaton_->length(state));
  }
  bool follows(StateId context, std::int32_t token) const {
    return automaton_->child(context, token) != kNoState;
  }

  const Automaton* automaton_ = nullptr;
  Cursor context_;  // the longest suffix that a token has followed in it
};

/// At most one view per tree, the most specific tree first.
struct ContextViews {
  std::array<ContextView, Evidence::kNumTrees> of;
  std::size_t size = 0;

  std::span<ContextView> all() { return std::span(of).first(size); }
  std::span<const ContextView> all() const { return std::span(of).first(size); }
  void add(const ContextView& view) { of[size++] = view; }
  /// Drops the views for which keep(view, those kept before it) is false; keep() may change its view.
  template <typename Keep>
  void keep_if(const Keep& keep) {
    std::size_t num_kept = 0;
    for (ContextView& one : all()) {
      if (!keep(one, std::span<const ContextView>(of).first(num_kept))) continue;
      if (&of[num_kept] != &one) of[num_kept] = one;
      ++num_kept;
    }
    size = num_kept;
  }
  std::uint32_t longest() const {
    std::uint32_t length = 0;
    for (const ContextView& one : all()) length = std::max(length, one.context.length);
    return length;
  }
};

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

/// Drafts the most probable next tokens, best first, over the union of the suffix trees. Each suffix tree is
/// read with its longest context and with a shorter one that has more evidence. The shorter context adds
/// alternatives where the longest has little evidence. A token that follows a context at least two thirds as
/// long as the longest is judged only by such contexts. Keeps only scratch memory between calls.
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
