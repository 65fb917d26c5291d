// A live request as a row of an engine's batch: what of it is known, and what its drafts came to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/request.hpp"

namespace agentspec {

/// Sums over a request's steps. Draft tokens are counted by source; what an engine pads with has none.
struct RowCounts {
  std::int64_t num_output_tokens = 0;
  std::int64_t num_steps = 0;   // that gave it output, but for the one that gave the first token
  std::int64_t num_drafts = 0;  // that were verified
  double decode_s = 0;          // from the first token to the last
  std::array<std::int64_t, kLastSource + 1> drafted{};
  std::array<std::int64_t, kLastSource + 1> accepted{};
};

/// Knows where a request ends, so that nothing behind its end is learned, counted or drafted.
class LiveRow {
 public:
  /// Prompt and output together are `most_tokens` at most; any of `stops` ends the output.
  LiveRow(std::uint64_t request, std::size_t num_prompt_tokens, std::size_t most_tokens,
          std::vector<std::int32_t> stops)
      : request_(request),
        num_known_(num_prompt_tokens),
        most_tokens_(most_tokens),
        stops_(std::move(stops)) {}

  std::uint64_t request() const { return request_; }
  /// Whether its first token is known.
  bool has_output() const { return has_output_; }

  /// Takes a step that verified `num_verified` draft tokens and sampled the last `num_sampled` (at least
  /// one) of `text`, the row so far; returns what is new. Steps may have been missed if they drafted nothing.
  std::span<const std::int32_t> take(std::span<const std::int32_t> text, std::size_t num_sampled,
                                     std::size_t num_verified, double now_s);
  /// How many of these tokens the next step is to verify: the model adds one of its own.
  std::size_t accept_draft(std::size_t num_tokens, SourceId source);
  /// What was counted since the last call.
  RowCounts take_counts() { return std::exchange(counts_, {}); }

 private:
  void count(std::size_t num_added, std::size_t num_verified, double now_s);

  std::uint64_t request_;
  std::size_t num_known_;
  std::size_t most_tokens_;
  std::vector<std::int32_t> stops_;
  std::size_t room_ = 0;  // for a draft
  bool has_output_ = false;
  SourceId source_ = kNoSource;  // of the draft that is verified next
  double last_s_ = 0;
  RowCounts counts_;
};

}  // namespace agentspec
