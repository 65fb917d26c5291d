// Requirements on the drafts of a step.
#pragma once

#include "core/forest/forest_core.hpp"
#include "naive_forest.hpp"

namespace agentspec {

/// The draft of one request in a batch.
struct DraftView {
  DraftView(const BatchDrafts& drafts, std::size_t i);

  std::span<const std::int32_t> token_ids;
  std::span<const std::int32_t> parents;
  std::span<const float> probs;
  double score;
  std::size_t match_length;
  SourceId source;
};

/// Throws Finding unless it equals the draft of the brute force, token by token.
void require_same_draft(const DraftView& draft, const ExpectedDraft& expected);

/// Checks that hold after any evictions: every drafted token has been seen where it is drafted, and the
/// figures fit together. Throws Finding.
void require_plausible_draft(const DraftView& draft, const NaiveForest& naive, RequestId id,
                             std::uint32_t max_tokens);

}  // namespace agentspec
