#include "core/drafting/learned_tree.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr std::uint32_t kMoreEvidence = 3;     // least ratio of the shorter context's occurrences
constexpr std::size_t kFewEdges = 64;          // up to this number, all children are read
constexpr std::size_t kChildrenOfLongest = 4;  // most candidates from the longest context
constexpr std::size_t kChildrenOfShorter = 3;
constexpr int kMostDepth = 255;

}  // namespace

void LearnedTree::draft(const ContextViews& views, const OwnText& own, std::int32_t before,
                        const AcceptanceModel& model, const DraftOptions& options, DraftTokens& draft,
                        std::vector<ScoredToken>& scored) {
  places_.assign(1, make_root(views, own, before));
  frontier_.clear();
  expand(0, model, options.min_prob, scored);
  while (!frontier_.empty()) {
    std::pop_heap(frontier_.begin(), frontier_.end());
    const Candidate chosen = frontier_.back();
    frontier_.pop_back();
    const auto node = static_cast<std::int32_t>(draft.token_ids.size());
    const std::int32_t token = scored[chosen.scored].token;
    const Place& place = places_[chosen.place];
    draft.push(token, place.node, chosen.prob, origin_of(place, token));
    if (draft.token_ids.size() == options.max_tokens) return;
    places_.push_back(Place(places_[chosen.place]));
    follow(places_.back(), token, chosen.prob, node);
    const auto begin = static_cast<std::uint32_t>(scored.size());
    expand(static_cast<std::uint32_t>(places_.size() - 1), model, options.min_prob, scored);
    if (scored.size() > begin) scored[chosen.scored].next = begin;
  }
}

// At most one candidate can be right, so estimates that add up to more than 1 are scaled down to a sum of 1.
void LearnedTree::expand(std::uint32_t place_number, const AcceptanceModel& model, double min_prob,
                         std::vector<ScoredToken>& scored) {
  const Place& place = places_[place_number];
  propose(place);
  const auto begin = static_cast<std::uint32_t>(scored.size());
  estimates_.clear();
  double sum = 0;
  for (const std::int32_t token : proposed_) {
    scored.push_back({evidence_for(place, token), token, begin});
    estimates_.push_back(model.estimate(scored.back().evidence));
    sum += estimates_.back();
  }
  const double scale = place.prob / std::max(sum, 1.0);
  for (std::uint32_t i = 0; i < estimates_.size(); ++i) {
    const double prob = estimates_[i] * scale;
    if (prob < min_prob) continue;
    frontier_.push_back({prob, begin + i, place_number});
    std::push_heap(frontier_.begin(), frontier_.end());
  }
}

LearnedTree::Place LearnedTree::make_root(const ContextViews& views, const OwnText& own,
                                          std::int32_t before) {
  Place root{};
  for (const ContextView& one : views.all()) {
    ContextPair& pair = root.pairs[root.num_pairs++];
    pair = {one.automaton, one.tree, one.context, {}};
    look(pair);
  }
  root.own = own;
  root.before = before;
  return root;
}

// Finds both contexts; `longest` has just matched the end of the text. While the longest context loses no
// occurrences, the shorter one is the previous shorter one plus a token, or a suffix of that. A longer one
// with enough occurrences would, without its last token, have been the shorter one before.
void LearnedTree::look(ContextPair& pair) {
  const Automaton& automaton = *pair.automaton;
  auto& [longest, length] = pair.longest;
  while (longest != kRoot && automaton.num_continued(longest) == 0) longest = automaton.link(longest);
  length = longest == kRoot ? 0 : std::min(length, automaton.length(longest));
  if (length == 0) {
    pair.shorter = {};
    pair.total = pair.shorter_total = 0;
    return;
  }
  automaton.prefetch(automaton.best_target(longest));
  automaton.prefetch_edges(longest);
  const std::uint32_t total = automaton.num_continued(longest);
  StateId shorter = pair.total == total ? pair.shorter.state : automaton.link(longest);
  while (shorter != kRoot && automaton.num_continued(shorter) < kMoreEvidence * total) {
    shorter = automaton.link(shorter);
  }
  pair.total = total;
  pair.shorter = {shorter, shorter == kRoot ? 0 : automaton.length(shorter)};
  pair.shorter_total = shorter == kRoot ? 0 : automaton.num_continued(shorter);
  automaton.prefetch(automaton.best_target(shorter));
  automaton.prefetch_edges(shorter);
}

void LearnedTree::propose(const Place& place) {
  proposed_.clear();
  for (const ContextPair& pair : place.all()) {
    if (pair.longest.length > 0) {
      propose(*pair.automaton, pair.longest.state, kChildrenOfLongest);
    }
    if (pair.shorter.length > 0) {
      propose(*pair.automaton, pair.shorter.state, kChildrenOfShorter);
    }
  }
}

// Proposes the best child and, if the context has few children, those of the highest counts.
void LearnedTree::propose(const Automaton& automaton, StateId context, std::size_t most) {
  propose(automaton.best_token(context));
  if (automaton.num_edges(context) > kFewEdges) return;
  children_.clear();
  automaton.for_each_child(context, [&](std::int32_t token, StateId child) {
    children_.emplace_back(automaton.count(child), token);
  });
  const auto is_before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const auto end = children_.begin() + static_cast<std::ptrdiff_t>(std::min(most, children_.size()));
  std::partial_sort(children_.begin(), end, children_.end(), is_before);
  for (auto child = children_.begin(); child != end; ++child) propose(child->second);
}

void LearnedTree::propose(std::int32_t token) {
  if (std::find(proposed_.begin(), proposed_.end(), token) == proposed_.end()) proposed_.push_back(token);
}

// A token that a long context knows is judged by long contexts only: after much shorter ones the evidence is
// mostly noise. Other tokens are judged by all.
Evidence LearnedTree::evidence_for(const Place& place, std::int32_t token) {
  std::uint32_t longest = 0;
  for (const ContextPair& pair : place.all()) longest = std::max(longest, pair.longest.length);
  const auto is_long = [longest](const ContextPair& pair) { return 3 * pair.longest.length >= 2 * longest; };
  std::array<std::uint32_t, Evidence::kNumTrees> counts{};
  bool is_known = false;
  for (std::size_t i = 0; i < place.num_pairs; ++i) {
    const ContextPair& pair = place.pairs[i];
    if (pair.longest.length > 0) counts[i] = ContextView::count(*pair.automaton, pair.longest.state, token);
    is_known = is_known || (counts[i] > 0 && is_long(pair));
  }
  Evidence evidence(place.depth);
  for (std::size_t i = 0; i < place.num_pairs; ++i) {
    const ContextPair& pair = place.pairs[i];
    if (pair.longest.length == 0 || (is_known && !is_long(pair))) continue;
    evidence.add_context(pair.tree, false, pair.longest.length, counts[i], pair.total);
    if (pair.shorter.length == 0) continue;
    const std::uint32_t count = ContextView::count(*pair.automaton, pair.shorter.state, token);
    evidence.add_context(pair.tree, true, pair.shorter.length, count, pair.shorter_total);
  }
  place.own.tell(token, longest, evidence);
  evidence.add_token(token, place.before);
  return evidence;
}

// Of the token after the place's contexts.
Origin LearnedTree::origin_of(const Place& place, std::int32_t token) {
  Origin origin = Origin::kSnapshot;
  for (const ContextPair& pair : place.all()) {
    for (const Cursor& context : {pair.longest, pair.shorter}) {
      if (context.length == 0) continue;
      const StateId next = pair.automaton->child(context.state, token);
      if (next != kNoState) origin = std::min(origin, pair.automaton->origin(next));
    }
  }
  return origin;
}

void LearnedTree::follow(Place& place, std::int32_t token, double prob, std::int32_t node) {
  for (ContextPair& pair : place.all()) {
    pair.longest = pair.automaton->advance(pair.longest, token);
    pair.shorter = pair.automaton->advance(pair.shorter, token);
  }
  for (ContextPair& pair : place.all()) look(pair);
  place.own.follow(token);
  place.before = token;
  place.prob = prob;
  place.node = node;
  place.depth = static_cast<std::uint8_t>(std::min(place.depth + 1, kMostDepth));
}

}  // namespace agentspec
