#include "core/drafting/learned_chain.hpp"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

namespace agentspec {
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

}  // namespace agentspec
