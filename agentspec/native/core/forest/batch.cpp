#include "core/forest/batch.hpp"

#include <algorithm>

namespace agentspec {

DraftOptions DraftLimits::options_for(const Request& request) const {
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  options.min_prob = std::max(options.min_prob, min_prob);
  return options;
}

void BatchDrafts::reserve(std::size_t num_drafts, std::size_t num_tokens) {
  token_ids.reserve(num_tokens);
  parents.reserve(num_tokens);
  probs.reserve(num_tokens);
  origins.reserve(num_tokens);
  offsets.reserve(num_drafts + 1);
  scores.reserve(num_drafts);
  match_lengths.reserve(num_drafts);
  sources.reserve(num_drafts);
}

void BatchDrafts::push_back(const SourcedDraft& draft) {
  const DraftTokens& tokens = draft.tokens;
  token_ids.insert(token_ids.end(), tokens.token_ids.begin(), tokens.token_ids.end());
  parents.insert(parents.end(), tokens.parents.begin(), tokens.parents.end());
  probs.insert(probs.end(), tokens.probs.begin(), tokens.probs.end());
  origins.insert(origins.end(), tokens.origins.begin(), tokens.origins.end());
  offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
  scores.push_back(tokens.score);
  match_lengths.push_back(static_cast<std::int32_t>(tokens.match_length));
  sources.push_back(draft.source);
}

}  // namespace agentspec
