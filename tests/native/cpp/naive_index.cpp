#include "naive_index.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace agentspec {
namespace {

/// C(N) of a continuation, with the doubt that the context's length leaves.
double share(std::uint32_t count, const Context& context, double doubt) {
  const double unseen = doubt / static_cast<double>(context.tokens.size());
  return count / (static_cast<double>(context.places.size()) + unseen);
}

bool ends_with(const NaiveText& text, std::size_t end, TokenSpan wanted) {
  for (std::size_t i = wanted.size(); i-- > 0;) {
    if (text.tokens[--end] != wanted[i]) return false;
  }
  return true;
}

std::uint32_t max_spec(const DraftOptions& options, std::size_t match_length) {
  const double limit = std::floor(options.alpha * static_cast<double>(match_length));
  return static_cast<std::uint32_t>(std::min<double>(limit, options.max_tokens));
}

}  // namespace

void NaiveDraft::push(std::int32_t token, std::int32_t parent, double prob) {
  token_ids.push_back(token);
  parents.push_back(parent);
  probs.push_back(prob);
  score += prob;
}

// ---- texts --------------------------------------------------------------------------------------------

std::uint64_t NaiveIndex::open() {
  texts_.emplace(num_opened_, NaiveText{});
  return num_opened_++;
}

void NaiveIndex::append(std::uint64_t key, TokenSpan tokens) {
  NaiveText& text = texts_.at(key);
  if (marks_begins_ && text.tokens.empty() && !tokens.empty()) {
    text.tokens.push_back(kBeginToken);
    text.times.push_back(++now_);
  }
  for (const std::int32_t token : tokens) {
    text.tokens.push_back(token);
    text.times.push_back(++now_);
  }
  num_tokens_ += tokens.size();
}

void NaiveIndex::close(std::uint64_t key) {
  if (texts_.at(key).tokens.empty()) texts_.erase(key);
}

void NaiveIndex::remove(std::uint64_t key) {
  const std::vector<std::int32_t> removed = texts_.at(key).tokens;
  std::map<std::vector<std::int32_t>, bool> followed;  // context -> did its best continuation occur here
  for (std::size_t next = 1; next < removed.size(); ++next) {
    for (std::size_t length = 1; length <= window(next); ++length) {
      const Context context = find(TokenSpan(removed).subspan(next - length, length));
      const bool is_best = best_token(context, continuations(context)) == removed[next];
      followed[context.tokens] |= is_best;
    }
  }
  texts_.erase(key);
  num_tokens_ -= removed.size() - (marks_begins_ && !removed.empty() ? 1 : 0);
  for (const auto& [tokens, was_best] : followed) {
    std::vector<Continuation> left = continuations(find(tokens));
    if (left.empty()) {
      resets_.erase(tokens);
    } else if (was_best) {
      const auto is_behind = [](const Continuation& a, const Continuation& b) {
        return a.count != b.count ? a.count < b.count : a.token > b.token;
      };
      resets_[tokens] = {now_, std::max_element(left.begin(), left.end(), is_behind)->token};
    }
  }
}

std::vector<std::uint64_t> NaiveIndex::keys_of(TokenSpan tokens) const {
  std::vector<std::uint64_t> keys;
  for (const auto& [key, text] : texts_) {
    const TokenSpan known = text.tokens;
    const bool is_marked = marks_begins_ && !known.empty();
    if (std::ranges::equal(is_marked ? known.subspan(1) : known, tokens)) keys.push_back(key);
  }
  return keys;
}

Context NaiveIndex::find(TokenSpan tokens) const {
  Context context{{tokens.begin(), tokens.end()}, {}};
  const TokenSpan wanted = tokens.last(window(tokens.size()));
  for (const auto& [key, text] : texts_) {
    for (std::size_t next = wanted.size(); next < text.tokens.size(); ++next) {
      if (ends_with(text, next, wanted)) context.places.push_back({&text, next});
    }
  }
  return context;
}

std::size_t NaiveIndex::match_length(TokenSpan text) const {
  for (std::size_t length = window(text.size()); length > 0; --length) {
    for (const auto& [key, known] : texts_) {
      for (std::size_t end = length; end <= known.tokens.size(); ++end) {
        if (ends_with(known, end, text.last(length))) return length;
      }
    }
  }
  return 0;
}

std::vector<Context> NaiveIndex::find_suffixes(TokenSpan text) const {
  std::vector<Context> found;
  const std::size_t longest = window(text.size());
  if (longest > 0) found.push_back(find(text.last(1)));
  while (found.size() < longest && !found.back().places.empty()) {
    const TokenSpan suffix = text.last(found.size() + 1);
    Context longer{{suffix.begin(), suffix.end()}, {}};
    for (const Place& place : found.back().places) {
      const bool reaches_back = place.next >= suffix.size();
      if (reaches_back && place.text->tokens[place.next - suffix.size()] == suffix[0])
        longer.places.push_back(place);
    }
    found.push_back(std::move(longer));
  }
  return found;
}

Context NaiveIndex::extended(const Context& context, std::int32_t token) const {
  Context longer{context.tokens, {}};
  longer.tokens.push_back(token);
  if (longer.tokens.size() >= depth_) return find(longer.tokens);  // the oldest token is dropped: more places
  for (const Place& place : context.places) {
    const bool is_followed = place.next + 1 < place.text->tokens.size();
    if (is_followed && place.text->tokens[place.next] == token)
      longer.places.push_back({place.text, place.next + 1});
  }
  return longer;
}

// ---- counts -------------------------------------------------------------------------------------------

std::vector<Continuation> NaiveIndex::continuations(const Context& context) const {
  std::vector<Continuation> found;
  for (const Place& place : context.places) {
    const std::int32_t token = place.text->tokens[place.next];
    const std::uint64_t time = place.text->times[place.next];
    const auto known = std::find_if(found.begin(), found.end(),
                                    [token](const Continuation& seen) { return seen.token == token; });
    if (known == found.end()) {
      found.push_back({token, 1, time});
    } else {
      ++known->count;
      known->last_time = std::max(known->last_time, time);
    }
  }
  return found;
}

// A token reaches its count at its last occurrence. Among tokens with the highest count, the last to reach it
// is the best. A reset discards the times before it.
std::int32_t NaiveIndex::best_token(const Context& context, const std::vector<Continuation>& found) const {
  const auto is_behind = [](const Continuation& a, const Continuation& b) {
    return a.count != b.count ? a.count < b.count : a.last_time < b.last_time;
  };
  const Continuation& best = *std::max_element(found.begin(), found.end(), is_behind);
  if (resets_.empty() || best.count == context.places.size()) return best.token;
  const TokenSpan key = TokenSpan(context.tokens).last(window(context.tokens.size()));
  const auto reset = resets_.find({key.begin(), key.end()});
  return reset == resets_.end() || best.last_time > reset->second.time ? best.token : reset->second.best;
}

// ---- Algorithm 1 --------------------------------------------------------------------------------------

NaiveDraft NaiveIndex::draft(TokenSpan text, const DraftOptions& options) const {
  NaiveDraft best;
  const std::vector<Context> matches = find_suffixes(text);
  for (std::size_t length = matches.size(); length >= std::max(options.min_match, 1u); --length) {
    const Context& context = matches[length - 1];
    const std::uint32_t max_tokens = max_spec(options, length);
    NaiveDraft tried = options.is_tree ? draft_tree(context, max_tokens, options)
                                       : draft_chain(context, max_tokens, options);
    tried.match_length = static_cast<std::uint32_t>(length);
    if (tried.score > best.score) best = std::move(tried);
  }
  return best;
}

NaiveDraft NaiveIndex::draft_chain(Context context, std::uint32_t max_tokens,
                                   const DraftOptions& options) const {
  NaiveDraft draft;
  double prob = 1.0;
  while (draft.token_ids.size() < max_tokens && !context.places.empty()) {
    const std::vector<Continuation> found = continuations(context);
    const std::int32_t token = best_token(context, found);
    for (const Continuation& one : found) {
      if (one.token == token) prob *= share(one.count, context, options.doubt);
    }
    if (prob < options.min_prob) break;
    draft.push(token, static_cast<std::int32_t>(draft.token_ids.size()) - 1, prob);
    context = extended(context, token);
  }
  return draft;
}

NaiveDraft NaiveIndex::draft_tree(const Context& context, std::uint32_t max_tokens,
                                  const DraftOptions& options) const {
  NaiveDraft draft;
  std::vector<Context> drafted;  // of each drafted node
  std::vector<Leaf> leaves;
  add_leaves(leaves, context, 1.0, -1, options);
  while (draft.token_ids.size() < max_tokens && !leaves.empty()) {
    const auto best = std::max_element(leaves.begin(), leaves.end(),
                                       [](const Leaf& a, const Leaf& b) { return a.prob < b.prob; });
    const Leaf leaf = *best;
    leaves.erase(best);
    draft.push(leaf.token, leaf.parent, leaf.prob);
    const Context& parent = leaf.parent < 0 ? context : drafted[static_cast<std::size_t>(leaf.parent)];
    drafted.push_back(extended(parent, leaf.token));
    add_leaves(leaves, drafted.back(), leaf.prob, static_cast<std::int32_t>(drafted.size()) - 1, options);
  }
  return draft;
}

// The best continuation is first, then the others by count and token id. Leaves of equal probability are
// drafted in this order.
void NaiveIndex::add_leaves(std::vector<Leaf>& leaves, const Context& context, double prob,
                            std::int32_t parent, const DraftOptions& options) const {
  std::vector<Continuation> found = continuations(context);
  if (found.empty()) return;
  const std::int32_t best = best_token(context, found);
  std::sort(found.begin(), found.end(), [best](const Continuation& a, const Continuation& b) {
    if (a.count != b.count) return a.count > b.count;
    return (a.token == best) != (b.token == best) ? a.token == best : a.token < b.token;
  });
  for (const Continuation& one : found) {
    const double leaf_prob = prob * share(one.count, context, options.doubt);
    if (leaf_prob >= options.min_prob) leaves.push_back({leaf_prob, one.token, parent});
  }
}

}  // namespace agentspec
