#include "core/drafting/learned_drafter.hpp"

#include <algorithm>
#include <new>
#include <span>
#include <tuple>
#include <utility>

namespace agentspec {

void learn_from(std::span<const ScoredToken> scored, std::span<const std::int32_t> tokens,
                AcceptanceModel& model) {
  std::size_t begin = 0;
  for (const std::int32_t token : tokens) {
    if (begin == scored.size()) break;
    const std::uint32_t place = scored[begin].place;
    std::size_t next = 0;
    for (std::size_t i = begin; i < scored.size() && scored[i].place == place; ++i) {
      const bool is_right = scored[i].token == token;
      model.learn(scored[i].evidence, is_right);
      if (is_right) next = scored[i].next;
    }
    if (next == 0) break;
    begin = next;
  }
}

namespace {

struct Choice {
  std::size_t scored;
  double estimate;
};

// True if a narrower tree has an equally long context that was continued often enough. The wider tree has the
// same context, plus other stages' outputs. `kept` already holds the narrower trees.
bool is_covered(const ContextView& wider, std::span<const ContextView> kept) {
  constexpr std::uint32_t kEnough = 3;
  return std::ranges::any_of(kept, [&](const ContextView& narrower) {
    return narrower.tree >= Evidence::kStage && narrower.context.length >= wider.context.length &&
           narrower.total() >= kEnough;
  });
}

void keep_telling_ones(ContextViews& views) {
  for (ContextView& one : views.all()) one.fall_back();
  const std::uint32_t longest = views.longest();
  views.keep_if([&](const ContextView& one, std::span<const ContextView> kept) {
    if (one.context.length == 0 || 3 * one.context.length < 2 * longest || is_covered(one, kept))
      return false;
    one.automaton->prefetch(one.automaton->best_target(one.context.state));
    return true;
  });
}

// Drops the trees without the token, which would have to fall back to a shorter context. Returns the origin
// of the token after its contexts.
Origin follow(ContextViews& views, std::int32_t token) {
  Origin origin = Origin::kSnapshot;
  views.keep_if([&](ContextView& one, std::span<const ContextView>) {
    const StateId next = one.automaton->child(one.context.state, token);
    if (next == kNoState) return false;
    origin = std::min(origin, one.automaton->origin(next));
    one.context = one.automaton->follow(one.context, next);
    return true;
  });
  return origin;
}

// The most frequent continuation but for the best one; -1 if there is none, or if it takes too long to find.
std::int32_t second_token(const ContextView& view) {
  constexpr std::size_t kFewEdges = 64;
  const std::size_t num_edges = view.automaton->num_edges(view.context.state);
  if (num_edges < 2 || num_edges > kFewEdges) return -1;
  std::int32_t second = -1;
  std::uint32_t most = 0;
  view.automaton->for_each_child(view.context.state, [&](std::int32_t token, StateId child) {
    const std::uint32_t count = view.automaton->count(child);
    if (token == view.best_token() || count < most || (count == most && token > second)) return;
    std::tie(second, most) = std::pair(token, count);
  });
  return second;
}

// Returns the candidate that is most likely to be accepted: one of the trees' best tokens, or one of their
// second tokens where these leave it open.
Choice choose(const ContextViews& views, const OwnText& own, std::int32_t before, std::size_t depth,
              const AcceptanceModel& model, std::vector<ScoredToken>& scored) {
  constexpr double kCertain = 0.75;
  const std::size_t begin = scored.size();
  const std::uint32_t longest = views.longest();
  Choice best{begin, 0};
  const auto consider = [&](std::int32_t token) {
    const auto others = std::span(scored).subspan(begin);
    if (std::ranges::any_of(others, [&](const ScoredToken& one) { return one.token == token; })) return;
    Evidence& evidence =
        scored.emplace_back(ScoredToken{Evidence(depth), token, static_cast<std::uint32_t>(begin)}).evidence;
    for (const ContextView& one : views.all())
      evidence.add_context(one.tree, false, one.context.length, one.count(token), one.total());
    own.tell(token, longest, evidence);
    evidence.add_token(token, before);
    const double estimate = model.estimate(evidence);
    if (estimate > best.estimate) best = {scored.size() - 1, estimate};
  };
  for (const ContextView& one : views.all()) consider(one.best_token());
  for (const ContextView& one : views.all()) {
    if (best.estimate >= kCertain) break;
    if (const std::int32_t token = second_token(one); token >= 0) consider(token);
  }
  return best;
}

}  // namespace

void draft_chain(ContextViews views, OwnText own, std::int32_t before, const AcceptanceModel& model,
                 const DraftOptions& options, DraftTokens& draft, std::vector<ScoredToken>& scored) {
  double prob = 1;
  std::size_t last = 0;  // index of the candidate drafted last
  for (std::size_t depth = 0; depth < options.max_tokens; ++depth) {
    keep_telling_ones(views);
    if (views.size == 0) return;
    if (depth > 0) scored[last].next = static_cast<std::uint32_t>(scored.size());
    const Choice choice = choose(views, own, before, depth, model, scored);
    prob *= choice.estimate;
    if (prob < options.min_prob) return;
    last = choice.scored;
    const std::int32_t token = scored[last].token;
    const Origin origin = follow(views, token);
    const bool has_own_view = views.size > 0 && views.of[0].tree == Evidence::kOwnTree;
    has_own_view ? own.follow_to(views.of[0].context) : own.follow(token);
    draft.push(token, static_cast<std::int32_t>(depth) - 1, prob, origin);
    before = token;
  }
}

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
