#include "naive_learned.hpp"

#include <algorithm>

namespace agentspec {
namespace {

using Path = std::vector<std::int32_t>;

Path joined(TokenSpan text, const Path& path) {
  Path whole(text.begin(), text.end());
  whole.insert(whole.end(), path.begin(), path.end());
  return whole;
}

Path followed_by(Path path, std::int32_t token) {
  path.push_back(token);
  return path;
}

std::uint32_t count_of(const NaiveIndex& tree, const Context& context, std::int32_t token) {
  for (const Continuation& one : tree.continuations(context)) {
    if (one.token == token) return one.count;
  }
  return 0;
}

/// Proposes the best continuation, then (of trees) those of the highest counts.
void propose(const NaiveIndex& tree, const Context& context, std::size_t most, Path& proposed) {
  const auto add = [&](std::int32_t token) {
    if (std::find(proposed.begin(), proposed.end(), token) == proposed.end()) proposed.push_back(token);
  };
  std::vector<Continuation> found = tree.continuations(context);
  add(tree.best_token(context, found));
  if (most == 1 || found.size() > 64) return;
  std::sort(found.begin(), found.end(), [](const Continuation& a, const Continuation& b) {
    return a.count != b.count ? a.count > b.count : a.token < b.token;
  });
  for (std::size_t i = 0; i < std::min(most, found.size()); ++i) add(found[i].token);
}

/// Proposes the most frequent continuation but for the best one, if it is new.
void propose_second(const NaiveIndex& tree, const Context& context, Path& proposed) {
  const std::vector<Continuation> found = tree.continuations(context);
  if (found.size() < 2 || found.size() > 64) return;
  const std::int32_t best = tree.best_token(context, found);
  const Continuation* second = nullptr;
  for (const Continuation& one : found) {
    if (one.token != best && (second == nullptr || one.count > second->count ||
                              (one.count == second->count && one.token < second->token)))
      second = &one;
  }
  if (std::find(proposed.begin(), proposed.end(), second->token) == proposed.end()) proposed.push_back(second->token);
}

}  // namespace

NaiveLearned::NaiveLearned(const Trees& trees, TokenSpan text, TokenSpan output, const AcceptanceModel& model,
                           const DraftOptions& options)
    : trees_(trees), text_(text), output_(output), model_(model), options_(options) {
  for (const TreeContexts& contexts : contexts_of({})) {
    if (contexts.longest == nullptr) continue;
    const auto length = static_cast<std::uint32_t>(contexts.longest->tokens.size());
    draft.match_length = std::max(draft.match_length, length);
  }
  if (options.max_tokens == 0 || draft.match_length < std::max(options.min_match, 1u)) return;
  options.is_tree ? draft_tree() : draft_chain();
  if (!draft.token_ids.empty()) name_tree();
}

std::array<NaiveLearned::TreeContexts, Evidence::kNumTrees> NaiveLearned::contexts_of(const Path& path) const {
  std::array<TreeContexts, Evidence::kNumTrees> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    TreeContexts& one = all[i];
    one.index = i;
    if (trees_[i] == nullptr) continue;
    one.tree = trees_[i];
    one.suffixes = one.tree->find_suffixes(joined(i == 0 ? text_ : output_, path));
    while (!one.suffixes.empty() && one.suffixes.back().places.empty()) one.suffixes.pop_back();
    if (one.suffixes.empty()) continue;
    one.longest = &one.suffixes.back();
    for (std::size_t length = one.suffixes.size() - 1; length > 0 && one.shorter == nullptr; --length) {
      if (one.suffixes[length - 1].places.size() >= 3 * one.longest->places.size())
        one.shorter = &one.suffixes[length - 1];
    }
  }
  return all;
}

// Contexts of a chain: only the longest ones, at least two thirds as long as the longest of all. A tree is
// left out if a narrower tree has as long a context and knows it well. Once left out, a tree stays so.
std::array<NaiveLearned::TreeContexts, Evidence::kNumTrees> NaiveLearned::long_ones_of(const Path& path) {
  auto all = contexts_of(path);
  std::size_t most = 0;
  for (TreeContexts& one : all) {
    one.shorter = nullptr;
    if (is_left_out_[one.index]) one.longest = nullptr;
    if (one.longest != nullptr) most = std::max(most, one.longest->tokens.size());
  }
  for (TreeContexts& one : all) {
    if (one.longest != nullptr && one.longest->tokens.size() * 3 < most * 2) one.longest = nullptr;
    for (std::size_t i = 2; i < one.index && one.longest != nullptr; ++i) {
      const Context* narrower = all[i].longest;
      if (narrower != nullptr && narrower->tokens.size() >= one.longest->tokens.size() && narrower->places.size() >= 3)
        one.longest = nullptr;
    }
    is_left_out_[one.index] = one.longest == nullptr;
  }
  return all;
}

void NaiveLearned::leave_out_strangers_to(std::int32_t token, const Path& path) {
  for (const TreeContexts& one : long_ones_of(path)) {
    if (one.longest != nullptr && count_of(*one.tree, *one.longest, token) == 0) is_left_out_[one.index] = true;
  }
}

// True for contexts at least two thirds as long as the longest; for all, if none of these knows the token.
std::array<bool, Evidence::kNumTrees> NaiveLearned::witnesses_of(
    const std::array<TreeContexts, Evidence::kNumTrees>& contexts, std::int32_t token) {
  std::size_t most = 0;
  for (const TreeContexts& one : contexts) {
    if (one.longest != nullptr) most = std::max(most, one.longest->tokens.size());
  }
  std::array<bool, Evidence::kNumTrees> are_long{};
  bool is_known = false;
  for (const TreeContexts& one : contexts) {
    if (one.longest == nullptr || one.longest->tokens.size() * 3 < most * 2) continue;
    are_long[one.index] = true;
    is_known = is_known || count_of(*one.tree, *one.longest, token) > 0;
  }
  if (!is_known) are_long.fill(true);
  return are_long;
}

Evidence NaiveLearned::evidence_for(const std::array<TreeContexts, Evidence::kNumTrees>& contexts,
                                    const Path& path, std::int32_t token) const {
  Evidence evidence;
  evidence.depth = static_cast<std::uint8_t>(path.size());
  const auto is_witness = witnesses_of(contexts, token);
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    if (!is_witness[i]) continue;
    for (const Context* context : {contexts[i].longest, contexts[i].shorter}) {
      if (context == nullptr) continue;
      evidence.add_context(i, context == contexts[i].shorter, static_cast<std::uint32_t>(context->tokens.size()),
                           count_of(*contexts[i].tree, *context, token),
                           static_cast<std::uint32_t>(context->places.size()));
    }
  }
  add_own(path, token, contexts, evidence);
  evidence.add_token(token, path.empty() ? output_.back() : path.back());
  return evidence;
}

// The request's own text: its longest context that the token followed, and its longest of all.
void NaiveLearned::add_own(const Path& path, std::int32_t token,
                           const std::array<TreeContexts, Evidence::kNumTrees>& contexts, Evidence& evidence) const {
  const NaiveIndex* own = trees_[0];
  if (own == nullptr) return;
  std::size_t of_all = 0;
  for (const TreeContexts& one : contexts) {
    if (one.longest != nullptr) of_all = std::max(of_all, one.longest->tokens.size());
  }
  std::size_t longest = 0;
  int followed = own->match_length({&token, 1}) > 0 ? 0 : -1;
  for (const Context& context : own->find_suffixes(joined(text_, path))) {
    if (context.places.empty()) continue;
    longest = context.tokens.size();
    if (count_of(*own, context, token) > 0) followed = static_cast<int>(longest);
  }
  evidence.add_own(followed, static_cast<std::uint32_t>(longest), static_cast<std::uint32_t>(of_all));
}

// Returns every scored token of the place, with its estimate.
std::vector<std::pair<std::int32_t, double>> NaiveLearned::expand(const Path& path) {
  const auto contexts = options_.is_tree ? contexts_of(path) : long_ones_of(path);
  Path proposed;
  for (const TreeContexts& one : contexts) {
    if (one.longest != nullptr) propose(*one.tree, *one.longest, options_.is_tree ? 4 : 1, proposed);
    if (one.shorter != nullptr) propose(*one.tree, *one.shorter, 3, proposed);
  }
  std::vector<std::pair<std::int32_t, double>> estimates;
  const auto consider = [&](std::int32_t token) {
    const Evidence evidence = evidence_for(contexts, path, token);
    scored[path].emplace_back(token, evidence);
    estimates.emplace_back(token, model_.estimate(evidence));
  };
  for (const std::int32_t token : proposed) consider(token);
  for (const TreeContexts& one : contexts) {  // second tokens of a chain, where the first ones leave it open
    const bool is_certain = std::ranges::any_of(estimates, [](const auto& found) { return found.second >= 0.75; });
    if (options_.is_tree || one.longest == nullptr || is_certain) continue;
    const std::size_t num_proposed = proposed.size();
    propose_second(*one.tree, *one.longest, proposed);
    if (proposed.size() > num_proposed) consider(proposed.back());
  }
  return estimates;
}

void NaiveLearned::draft_chain() {
  Path path;
  double prob = 1;
  while (path.size() < options_.max_tokens) {
    const auto estimates = expand(path);
    if (estimates.empty()) return;
    const auto best = std::max_element(estimates.begin(), estimates.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    prob *= best->second;
    if (prob < options_.min_prob) return;
    draft.push(best->first, static_cast<std::int32_t>(path.size()) - 1, prob);
    leave_out_strangers_to(best->first, path);
    path.push_back(best->first);
  }
}

void NaiveLearned::draft_tree() {
  std::vector<Leaf> leaves;  // in the order of discovery
  const auto discover = [&](const Path& path, double prob, std::int32_t parent) {
    const auto estimates = expand(path);
    double sum = 0;
    for (const auto& [token, estimate] : estimates) sum += estimate;
    const double scale = prob / std::max(sum, 1.0);
    for (const auto& [token, estimate] : estimates) {
      if (estimate * scale >= options_.min_prob)
        leaves.push_back({estimate * scale, followed_by(path, token), parent});
    }
  };
  discover({}, 1, -1);
  while (!leaves.empty()) {
    const auto best = std::max_element(leaves.begin(), leaves.end(),
                                       [](const Leaf& a, const Leaf& b) { return a.prob < b.prob; });
    const Leaf leaf = *best;
    leaves.erase(best);
    draft.push(leaf.path.back(), leaf.parent, leaf.prob);
    if (draft.token_ids.size() == options_.max_tokens) return;
    discover(leaf.path, leaf.prob, static_cast<std::int32_t>(draft.token_ids.size()) - 1);
  }
}

void NaiveLearned::name_tree() {
  std::pair<bool, std::size_t> best{false, 0};
  for (const TreeContexts& one : contexts_of({})) {
    if (one.longest == nullptr) continue;
    const bool has_it =
        one.tree->best_token(*one.longest, one.tree->continuations(*one.longest)) == draft.token_ids.front();
    const std::pair claim{has_it, one.longest->tokens.size()};
    if (claim <= best) continue;
    best = claim;
    tree = one.index;
  }
}

void learn_naively(const NaiveScores& scored, TokenSpan tokens, AcceptanceModel& model) {
  Path path;
  for (const std::int32_t token : tokens) {
    const auto place = scored.find(path);
    if (place == scored.end()) return;
    bool is_known = false;
    for (const auto& [other, evidence] : place->second) {
      model.learn(evidence, other == token);
      is_known |= other == token;
    }
    if (!is_known) return;
    path.push_back(token);
  }
}

}  // namespace agentspec
