#include "core/drafting/drafter.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

namespace agentspec {
namespace {

/// floor(alpha * match_length), at most max_tokens.
std::uint32_t max_spec(const DraftOptions& options, std::uint32_t match_length) {
  const double limit = std::floor(options.alpha * match_length);
  return limit >= options.max_tokens ? options.max_tokens : static_cast<std::uint32_t>(limit);
}

/// Upper bound on the score of a draft of `num_tokens` tokens: no D(N) is above the best child's. The margin
/// covers the rounding of a sum; sums of ones are exact.
double score_bound(double best_child_prob, std::uint32_t num_tokens) {
  return best_child_prob == 1.0 ? num_tokens : best_child_prob * num_tokens * (1 + 1e-9);
}

/// C(N) of a child that occurs `count` times after a context of `length` tokens.
double share(const Automaton& automaton, StateId context, std::uint32_t count, std::uint32_t length,
             double doubt) {
  return count / (automaton.num_continued(context) + doubt / length);
}

/// C(N) of the context's best child.
double best_child_prob(const Automaton& automaton, StateId context, std::uint32_t length, double doubt) {
  return share(automaton, context, automaton.count(automaton.best_target(context)), length, doubt);
}

}  // namespace

void DraftTokens::clear() {
  token_ids.clear();
  parents.clear();
  probs.clear();
  origins.clear();
  score = 0.0;
  match_length = 0;
}

void DraftTokens::push(std::int32_t token, std::int32_t parent, double prob, Origin origin) {
  token_ids.push_back(token);
  parents.push_back(parent);
  probs.push_back(prob);
  origins.push_back(origin);
  score += prob;
}

bool Drafter::improve(const Automaton& automaton, Cursor match, const DraftOptions& options,
                      DraftTokens& best) noexcept {
  bool is_better = false;
  std::uint32_t length = match.length;
  for (StateId id = match.state; id != kRoot;) {
    const std::uint32_t max_tokens = max_spec(options, length);
    if (length < options.min_match || max_tokens <= best.score) break;  // shorter matches draft even less
    if (automaton.num_continued(id) > 0 &&
        score_bound(best_child_prob(automaton, id, length, options.doubt), max_tokens) > best.score) {
      tried_.clear();
      tried_.match_length = length;
      if (try_expand(automaton, id, max_tokens, options) && tried_.score > best.score) {
        std::swap(tried_, best);
        is_better = true;
      }
    }
    id = automaton.link(id);
    length = automaton.length(id);
  }
  return is_better;
}

// Returns false if memory ran out; tried_ is then incomplete.
bool Drafter::try_expand(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                         const DraftOptions& options) noexcept {
  try {
    if (options.is_tree) {
      expand_tree(automaton, context, max_tokens, options);
    } else {
      expand_chain(automaton, context, max_tokens, options);
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Drafter::expand_chain(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                           const DraftOptions& options) {
  double prob = 1.0;
  for (std::uint32_t n = 0; n < max_tokens && automaton.num_continued(context) > 0; ++n) {
    prob *= best_child_prob(automaton, context, tried_.match_length + n, options.doubt);
    if (prob < options.min_prob) return;
    const StateId next = automaton.best_target(context);
    tried_.push(automaton.best_token(context), static_cast<std::int32_t>(n) - 1, prob,
                automaton.origin(next));
    context = automaton.context_of(next);
  }
}

void Drafter::expand_tree(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                          const DraftOptions& options) {
  const auto is_worse = [](const Candidate& a, const Candidate& b) {
    return a.prob != b.prob ? a.prob < b.prob : a.order > b.order;
  };
  frontier_.clear();
  num_discovered_ = 0;
  Candidate drafted{1.0, 0, context, -1, -1, tried_.match_length};  // the root
  for (std::uint32_t n = 0; n < max_tokens; ++n) {
    discover(automaton, context, drafted, max_tokens - n, options);
    for (const Candidate& child : children_) {
      frontier_.push_back({child.prob, child.order, child.state, child.token,
                           static_cast<std::int32_t>(n) - 1, child.length});
      std::push_heap(frontier_.begin(), frontier_.end(), is_worse);
    }
    if (frontier_.empty()) return;
    std::pop_heap(frontier_.begin(), frontier_.end(), is_worse);
    drafted = frontier_.back();
    frontier_.pop_back();
    tried_.push(drafted.token, drafted.parent, drafted.prob, automaton.origin(drafted.state));
    context = automaton.context_of(drafted.state);
  }
}

// Lists the children of a drafted node that may be drafted: the best edge first, then by count and token id.
void Drafter::discover(const Automaton& automaton, StateId context, const Candidate& node,
                       std::uint32_t max_children, const DraftOptions& options) {
  children_.clear();
  if (automaton.num_continued(context) == 0) return;
  const std::int32_t best_token = automaton.best_token(context);
  automaton.for_each_child(context, [&](std::int32_t token, StateId child) {
    const double prob =
        node.prob * share(automaton, context, automaton.count(child), node.length, options.doubt);
    if (prob >= options.min_prob) children_.push_back({prob, 0, child, token, -1, node.length + 1});
  });
  const auto is_before = [best_token](const Candidate& a, const Candidate& b) {
    if (a.prob != b.prob) return a.prob > b.prob;
    if ((a.token == best_token) != (b.token == best_token)) return a.token == best_token;
    return a.token < b.token;
  };
  const auto kept = static_cast<std::ptrdiff_t>(std::min<std::size_t>(children_.size(), max_children));
  std::partial_sort(children_.begin(), children_.begin() + kept, children_.end(), is_before);
  children_.resize(static_cast<std::size_t>(kept));
  for (Candidate& child : children_) child.order = num_discovered_++;
}

}  // namespace agentspec
