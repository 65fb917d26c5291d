#include "core/drafting/learned_chain.hpp"

#include <algorithm>
#include <span>

namespace agentspec {
namespace {

struct Choice {
  std::size_t considered;
  double estimate;
};

// True if a narrower tree has an equally long context that was continued often enough. The wider tree has the
// same context, plus other stages' outputs. `kept` already holds the narrower trees.
bool is_covered(const Reading& wider, const Readings& kept) {
  constexpr std::uint32_t kEnough = 3;
  return std::ranges::any_of(kept.all(), [&](const Reading& narrower) {
    return narrower.tree >= Evidence::kStage && narrower.context.length >= wider.context.length &&
           narrower.total() >= kEnough;
  });
}

void keep_telling_ones(Readings& readings) {
  for (Reading& one : readings.all()) one.fall_back();
  const std::uint32_t longest = readings.longest();
  Readings kept;
  for (const Reading& one : readings.all()) {
    if (one.context.length == 0 || 3 * one.context.length < 2 * longest || is_covered(one, kept)) continue;
    one.automaton->prefetch(one.automaton->best_target(one.context.state));
    kept.add(one);
  }
  readings = kept;
}

// Drops the trees without the token, which would have to fall back to a shorter context.
void follow(Readings& readings, std::int32_t token) {
  Readings kept;
  for (Reading one : readings.all()) {
    const StateId next = one.automaton->child(one.context.state, token);
    if (next == kNoState) continue;
    one.context = one.automaton->follow(one.context, next);
    kept.add(one);
  }
  readings = kept;
}

// Returns the one of the trees' best tokens that is most likely to be accepted.
Choice choose(const Readings& readings, std::span<const std::int32_t, 2> before, std::size_t depth,
              const AcceptanceModel& model, std::vector<Considered>& considered) {
  const std::size_t begin = considered.size();
  Choice best{begin, 0};
  for (const Reading& proposer : readings.all()) {
    const std::int32_t token = proposer.best_token();
    const auto others = std::span(considered).subspan(begin);
    if (std::any_of(others.begin(), others.end(), [&](const auto& one) { return one.token == token; }))
      continue;
    Evidence evidence(depth);
    for (const Reading& one : readings.all()) {
      evidence.add_context(one.tree, false, one.context.length, one.count(token), one.total());
    }
    evidence.add_names(token, before);
    const double estimate = model.estimate(evidence);
    if (estimate > best.estimate) best = {considered.size(), estimate};
    considered.push_back({evidence, token, static_cast<std::uint32_t>(begin)});
  }
  return best;
}

}  // namespace

void draft_chain(Readings readings, std::array<std::int32_t, 2> before, const AcceptanceModel& model,
                 const DraftOptions& options, DraftTokens& draft, std::vector<Considered>& considered) {
  double prob = 1;
  std::size_t last = 0;  // index of the candidate drafted last
  for (std::size_t depth = 0; depth < options.max_tokens; ++depth) {
    keep_telling_ones(readings);
    if (readings.size == 0) return;
    if (depth > 0) considered[last].next = static_cast<std::uint32_t>(considered.size());
    const Choice choice = choose(readings, before, depth, model, considered);
    prob *= choice.estimate;
    if (prob < options.min_prob) return;
    last = choice.considered;
    const std::int32_t token = considered[last].token;
    draft.push(token, static_cast<std::int32_t>(depth) - 1, prob);
    follow(readings, token);
    before = {token, before[0]};
  }
}

}  // namespace agentspec
