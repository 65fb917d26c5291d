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

namespace {

/// Calls visit(request, link, index) for the present shared indices of requests that need drafts.
template <typename Visit>
void for_each_link(std::span<Request* const> block, const Visit& visit) {
  for (Request* request : block) {
    if (request->options.max_tokens == 0 && !request->model) continue;
    for (Link& link : request->links) {
      if (link.shared->index != nullptr) visit(*request, link, *link.shared->index);
    }
  }
}

// True if the request's sequence in the index, which begins with a mark, is its context.
bool has_mark(const Request& request, const Link& link) {
  return link.has_sequence && request.model != nullptr;
}

Cursor last_match(const Link& link) { return link.match.longest(); }

// Improves on the draft from the request's own index; ties stay with the more specific source.
// `match_in(link)` is the context's match.
template <typename MatchIn>
void draft_from_links(const Request& request, const DraftOptions& options, const MatchIn& match_in,
                      DraftScratch& scratch) {
  if (options.max_tokens == 0) return;
  for (const Link& link : request.links) {
    if (link.shared->index == nullptr) continue;
    const Automaton& automaton = link.shared->index->automaton();
    if (scratch.drafter.improve(automaton, match_in(link), options, scratch.draft.tokens)) {
      scratch.draft.source = link.source;
    }
  }
}

// Of several trees of one kind, the one with the longest match counts.
template <typename MatchIn>
void draft_learned(const Request& request, Cursor own, std::int32_t last_token, const DraftOptions& options,
                   const MatchIn& match_in, DraftScratch& scratch, std::vector<ScoredToken>& scored) {
  TreeMatches matches;
  if (request.own) matches[kRequestSource - 1] = {&request.own.automaton(), own};
  for (const Link& link : request.links) {
    if (link.shared->index == nullptr) continue;
    const Cursor match = match_in(link);
    TreeMatch& longest = matches[link.source - 1];
    if (match.length > longest.match.length) longest = {&link.shared->index->automaton(), match};
  }
  const std::size_t tree = scratch.learned.draft(matches, last_token, request.model->acceptance, options,
                                                 scratch.draft.tokens, scored);
  scratch.draft.source = tree == Evidence::kNumTrees ? kNoSource : static_cast<SourceId>(tree + 1);
}

// Returns -1 if there is none.
std::int32_t last_of(std::span<const std::int32_t> text) { return text.empty() ? -1 : text.back(); }

// The longest suffix of (the cursor's string + tokens) that occurs.
Cursor advance(const Automaton& automaton, Cursor cursor, std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) cursor = automaton.advance(cursor, token);
  return cursor;
}

}  // namespace

void prefetch(std::span<Request* const> block) {
  for (const Request* request : block) {
    for (std::size_t i = 0; i < sizeof(Request); i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(request) + i);
    }
  }
  for (const Request* request : block) {
    if (request->own) request->own->prefetch();
    __builtin_prefetch(request->links.data());
    __builtin_prefetch(request->context.data() + request->context.size());
  }
}

// Matches the requests' contexts in the shared indices.
void follow_links(std::span<Request* const> block, bool is_learned, Lookahead& lookahead) {
  for_each_link(block, [&](const Request& request, Link& link, const SuffixIndex& index) {
    const Automaton& automaton = index.automaton();
    if (is_learned && has_mark(request, link)) return automaton.prefetch(index.tail(link.sequence).state);
    const std::size_t num_new = request.num_output - link.num_matched;
    link.match.look_ahead(automaton, request.context, num_new, lookahead);
  });
  lookahead.run();
  for_each_link(block, [&](const Request& request, Link& link, const SuffixIndex& index) {
    const std::size_t num_new = request.num_output - link.num_matched;
    const bool is_known = has_mark(request, link) && (is_learned || num_new == 0);
    const Cursor known = is_known ? index.tail(link.sequence) : Cursor{};
    link.num_matched = request.num_output;
    lookahead.add_draft(index.automaton(),
                        link.match.follow(index.automaton(), request.context, num_new, known));
  });
}

// Continues from the request's own sequence in the indices, as far as they have learned it.
void begin_matches(Request& request) {
  if (request.own && !request.own_match.is_begun(request.own.automaton())) {
    request.own_match.begin_at(request.own.automaton(), request.own->tail(), true);
  }
  for (Link& link : request.links) {
    if (!has_mark(request, link) || link.shared->index == nullptr) continue;
    const SuffixIndex& index = *link.shared->index;
    if (link.match.is_begun(index.automaton()) || !index.is_learned(link.sequence)) continue;
    const Cursor tail = index.tail(link.sequence);
    link.match.begin_at(index.automaton(), tail, tail.length > 0);  // nothing precedes its begin mark
    if (link.match.is_begun(index.automaton())) link.num_matched = request.num_output;
  }
}

void draft_from_own_index(const Request& request, Cursor match, const DraftOptions& options,
                          DraftScratch& scratch) {
  scratch.draft.tokens.clear();
  scratch.draft.source = kNoSource;
  if (options.max_tokens == 0 || !request.own) return;
  if (scratch.drafter.improve(request.own.automaton(), match, options, scratch.draft.tokens)) {
    scratch.draft.source = kRequestSource;
  }
}

void improve_draft(Request& request, Cursor own, const DraftOptions& options, DraftScratch& scratch) {
  if (!request.model) return draft_from_links(request, options, last_match, scratch);
  draft_learned(request, own, last_of(request.context), options, last_match, scratch, request.scored.last);
}

void draft_after(const Request& request, std::span<const std::int32_t> tokens, const DraftOptions& options,
                 DraftScratch& scratch) {
  const auto match_in = [&](const Link& link) {
    const Automaton& automaton = link.shared->index->automaton();
    Match match = link.match;  // a copy: the request's own one stays where it is
    const std::size_t num_new = request.num_output - link.num_matched;
    return advance(automaton, match.follow(automaton, request.context, num_new, {}), tokens);
  };
  const Cursor own = request.own ? advance(request.own.automaton(), request.own.tail(), tokens) : Cursor{};
  if (!request.model) {
    draft_from_own_index(request, own, options, scratch);
    return draft_from_links(request, options, match_in, scratch);
  }
  const std::int32_t last_token = last_of(tokens.empty() ? request.context : tokens);
  std::vector<ScoredToken> scored;  // its outcome is not learned
  draft_learned(request, own, last_token, options, match_in, scratch, scored);
}

}  // namespace agentspec
