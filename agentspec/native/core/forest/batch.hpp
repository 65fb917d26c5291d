// A decode step's input and output, and the draft of one request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/drafter.hpp"
#include "core/drafting/learned_drafter.hpp"
#include "core/forest/request.hpp"
#include "core/index/match.hpp"

namespace agentspec {

/// New output tokens of several requests: those of requests[i] are tokens[offsets[i] .. offsets[i + 1]).
struct BatchUpdate {
  std::span<const RequestId> requests;
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t> offsets;

  std::span<const std::int32_t> tokens_of(std::size_t i) const {
    return tokens.subspan(static_cast<std::size_t>(offsets[i]),
                          static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
  /// True if drafts save steps here: drafts from the requests' last tokens are then worth the time to learn
  /// them first. More tokens per request than kMostGained are of many steps without drafts.
  bool gains() const {
    return tokens.size() >= kFewGained * requests.size() && tokens.size() <= kMostGained * requests.size();
  }

  static constexpr std::size_t kFewGained = 2;
  static constexpr std::size_t kMostGained = 8;
};

/// The requests of an update, in its order.
using RequestBatch = std::vector<Request*>;

/// Limits of drafts, in addition to each request's own options.
struct DraftLimits {
  std::uint32_t max_tokens;
  double min_prob;

  DraftOptions options_for(const Request& request) const;
};

struct SourcedDraft {
  DraftTokens tokens;
  SourceId source = kNoSource;
};

/// Drafts end to end: draft i is [offsets[i], offsets[i + 1]) of the token arrays.
struct BatchDrafts {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<float> probs;
  std::vector<Origin> origins;
  std::vector<std::int64_t> offsets{0};
  std::vector<double> scores;
  std::vector<std::int32_t> match_lengths;
  std::vector<SourceId> sources;

  std::size_t size() const { return scores.size(); }
  void reserve(std::size_t num_drafts, std::size_t num_tokens);
  void push_back(const SourcedDraft& draft);
};

/// One thread's memory for drafting.
struct alignas(128) DraftScratch {
  Drafter drafter;
  LearnedDrafter learned;
  Lookahead lookahead;
  SourcedDraft draft;
};

/// Brings requests into the caches, level by level.
void prefetch(std::span<Request* const> block);

/// Moves the requests' matches to where their own sequences end in the indices, as far as those learned them.
void begin_matches(Request& request);
/// Matches the requests' contexts in the shared indices, and fetches what a draft from there reads.
/// `is_learned`: the indices have ingested the output, so a request's sequence is the longest possible match.
void follow_links(std::span<Request* const> block, bool is_learned, Lookahead& lookahead);

/// Sets scratch.draft to the paper's draft from the request's own index, matched at `match`; empty without
/// one.
void draft_from_own_index(const Request& request, Cursor match, const DraftOptions& options,
                          DraftScratch& scratch);
/// Improves scratch.draft by the shared indices, after follow_links(). A request with a model is drafted for
/// from all trees together, by its model. `own` is the match in its own index.
void improve_draft(Request& request, Cursor own, const DraftOptions& options, DraftScratch& scratch);
/// Sets scratch.draft to the draft that would follow if `tokens` followed the text. Changes nothing else:
/// the request's last draft stays the one that outcomes are learned for.
void draft_after(const Request& request, std::span<const std::int32_t> tokens, const DraftOptions& options,
                 DraftScratch& scratch);

}  // namespace agentspec
