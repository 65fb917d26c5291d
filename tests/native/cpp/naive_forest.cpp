#include "naive_forest.hpp"

#include <algorithm>
#include <utility>

namespace agentspec {
void NaiveForest::learn(std::span<const IndexId> indices, TokenSpan tokens) {
  for (const IndexId id : indices) {
    const auto found = indices_.find(id);
    if (found == indices_.end()) continue;
    const std::uint64_t key = found->second.open();
    found->second.append(key, tokens);
    found->second.close(key);
  }
}

void NaiveForest::forget(std::span<const IndexId> indices, TokenSpan tokens) {
  for (const IndexId id : indices) {
    const auto found = indices_.find(id);
    if (found == indices_.end() || tokens.empty()) continue;
    for (const std::uint64_t key : found->second.keys_of(tokens)) {
      if (!is_live(id, key)) found->second.remove(key);
    }
  }
}

bool NaiveForest::is_live(IndexId index, std::uint64_t key) const {
  return std::any_of(requests_.begin(), requests_.end(), [&](const auto& live) {
    return live.second.learns &&
           std::any_of(live.second.links.begin(), live.second.links.end(),
                       [&](const Link& link) { return link.index == index && link.key == key; });
  });
}

void NaiveForest::start(RequestId id, TokenSpan prompt, TokenSpan prediction,
                        std::span<const SharedSource> sources, bool learn, const DraftOptions& options,
                        std::optional<ModelId> model) {
  Request made{NaiveIndex(depth_), 0, {prompt.begin(), prompt.end()}, {kBeginToken}, options, learn, {}, model, {}, {}};
  made.own.append(made.own.open(), prediction);
  made.key = made.own.open();
  made.own.append(made.key, prompt);
  for (const SharedSource& source : sources) {
    if (indices_.contains(source.index)) made.links.push_back({source.index, source.source, 0});
  }
  std::stable_sort(made.links.begin(), made.links.end(),
                   [](const Link& a, const Link& b) { return a.source < b.source; });
  for (Link& link : made.links) {
    if (learn) link.key = indices_.at(link.index).open();
  }
  requests_.emplace(id, std::move(made));
}

void NaiveForest::observe(const BatchUpdate& update) {
  extend(update);
  apply_deferred(update);
}

void NaiveForest::extend(const BatchUpdate& update) {
  for (std::size_t i = 0; i < update.requests.size(); ++i) {
    Request& request = requests_.at(update.requests[i]);
    const TokenSpan tokens = update.tokens_of(i);
    if (!tokens.empty()) request.pending_outcome = std::exchange(request.scored, {});
    request.text.insert(request.text.end(), tokens.begin(), tokens.end());
    request.output.insert(request.output.end(), tokens.begin(), tokens.end());
  }
}

void NaiveForest::apply_deferred(const BatchUpdate& update) {
  for (std::size_t i = 0; i < update.requests.size(); ++i) {
    Request& request = requests_.at(update.requests[i]);
    const TokenSpan tokens = update.tokens_of(i);
    if (!tokens.empty() && request.model) {
      learn_naively(request.pending_outcome, tokens, models_.at(*request.model));
      request.pending_outcome.clear();
    }
    request.own.append(request.key, tokens);
    for (const Link& link : request.links) {
      const auto found = indices_.find(link.index);
      if (request.learns && found != indices_.end()) found->second.append(link.key, tokens);
    }
  }
}

void NaiveForest::finish(RequestId id, bool keep) {
  const Request& request = requests_.at(id);
  for (const Link& link : request.links) {
    const auto found = indices_.find(link.index);
    if (!request.learns || found == indices_.end()) continue;
    keep ? found->second.close(link.key) : found->second.remove(link.key);
  }
  requests_.erase(id);
}

ExpectedDraft NaiveForest::draft(RequestId id, std::uint32_t max_tokens, bool with_own,
                                 const std::set<IndexId>& left_out) const {
  const Request& request = requests_.at(id);
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  ExpectedDraft best;
  const auto consider = [&](const NaiveIndex& index, SourceId source) {
    NaiveDraft draft = index.draft(text_for(request, source), options);
    if (draft.score > best.draft.score) best = {std::move(draft), source};
  };
  if (with_own) consider(request.own, kRequestSource);
  for (const Link& link : request.links) {
    const auto found = indices_.find(link.index);
    if (found != indices_.end() && !left_out.contains(link.index)) consider(found->second, link.source);
  }
  return best;
}

ExpectedDraft NaiveForest::draft_learned(RequestId id, std::uint32_t max_tokens) {
  Request& request = requests_.at(id);
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  NaiveLearned::Trees trees{&request.own};
  std::array<std::size_t, Evidence::kNumTrees> lengths{};
  for (const Link& link : request.links) {
    const auto found = indices_.find(link.index);
    if (found == indices_.end()) continue;
    const std::size_t length = found->second.match_length(request.output);
    const std::size_t tree = link.source - 1u;
    if (length > lengths[tree]) trees[tree] = &found->second;
    lengths[tree] = std::max(lengths[tree], length);
  }
  NaiveLearned learned(trees, request.text, request.output, models_.at(*request.model), options);
  request.scored = std::move(learned.scored);
  const bool is_empty = learned.tree == Evidence::kNumTrees;
  return {std::move(learned.draft), is_empty ? kNoSource : static_cast<SourceId>(learned.tree + 1)};
}

bool NaiveForest::has_seen(RequestId id, SourceId source, std::size_t match_length, TokenSpan path,
                           std::int32_t token) const {
  const Request& request = requests_.at(id);
  const TokenSpan matched = text_for(request, source).last(match_length);
  std::vector<std::int32_t> wanted(matched.begin(), matched.end());
  wanted.insert(wanted.end(), path.begin(), path.end());
  const auto is_in = [&](const NaiveIndex& index) {
    const Context context = index.find(wanted);
    return std::any_of(context.places.begin(), context.places.end(),
                       [token](const Place& place) { return place.text->tokens[place.next] == token; });
  };
  if (source == kRequestSource) return is_in(request.own);
  return std::any_of(request.links.begin(), request.links.end(), [&](const Link& link) {
    const auto found = indices_.find(link.index);
    return link.source == source && found != indices_.end() && is_in(found->second);
  });
}

}  // namespace agentspec
