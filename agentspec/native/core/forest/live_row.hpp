// A live request as a row of an engine's batch: what of it is known, and what its drafts came to.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/forest/request.hpp"

namespace agentspec {

/// Sums over a request's steps. Draft tokens are counted by source; what an engine pads with has none.
struct RowCounts {
  std::int64_t num_output_tokens = 0;
  std::int64_t num_steps = 0;    // that gave it output, but for the one that gave the first token
  std::int64_t num_drafts = 0;   // that were verified
  double decode_s = 0;           // from the first token to the last
  double measured_decode_s = 0;  // of it, in steps that are known without drafts, too
  double plain_decode_s = 0;     // what these would have taken without
  std::array<std::int64_t, kLastSource + 1> drafted{};
  std::array<std::int64_t, kLastSource + 1> accepted{};
};

/// Knows where a request ends, so that nothing behind its end is learned, counted or drafted. It is counted
/// before it has entered the core, which is told what came before when it has.
class LiveRow {
 public:
  /// Prompt and output together are `most_tokens` at most; any of `stops` ends the output.
  LiveRow(std::size_t num_prompt_tokens, std::size_t most_tokens, std::vector<std::int32_t> stops)
      : num_known_(num_prompt_tokens),
        num_counted_(num_prompt_tokens),
        most_tokens_(most_tokens),
        stops_(std::move(stops)) {}

  /// What a step comes to, before anything is changed.
  struct Gain {
    std::span<const std::int32_t> tokens;  // that the core does not know
    std::size_t num_new = 0;               // tokens that were not counted
    std::size_t room = 0;                  // for a draft: the model adds a token of its own
  };

  /// Its id in the core, once it is there.
  std::optional<std::uint64_t> request() const { return request_; }
  void enter(std::uint64_t request) { request_ = request; }
  /// Whether its first token is known.
  bool has_output() const { return has_output_; }

  /// A step sampled the last `num_sampled` (at least one) tokens of `text`, the row so far.
  Gain gain(std::span<const std::int32_t> text, std::size_t num_sampled) const;
  /// The step is done. `num_verified` draft tokens were verified in it, and the next is to verify so many
  /// from this source.
  void take(const Gain& gain, std::size_t num_verified, std::size_t num_drafted, SourceId source,
            double now_s);
  /// A step that gave it `num_new` tokens took so many seconds; without drafts they would have taken
  /// `fixed_s` and `per_token_s` each.
  void count_saving(std::size_t num_new, double measured_s, double fixed_s, double per_token_s) {
    counts_.measured_decode_s += measured_s;
    counts_.plain_decode_s += std::max(0.0, fixed_s + static_cast<double>(num_new) * per_token_s);
  }
  /// What was counted since the last call.
  RowCounts take_counts() { return std::exchange(counts_, {}); }

 private:
  void count(std::size_t num_new, std::size_t num_verified, double now_s);

  std::optional<std::uint64_t> request_;
  std::size_t num_known_;    // tokens, to the core
  std::size_t num_counted_;  // tokens
  std::size_t most_tokens_;
  std::vector<std::int32_t> stops_;
  bool has_output_ = false;
  SourceId source_ = kNoSource;  // of the draft that is verified next
  double last_s_ = 0;
  RowCounts counts_;
};

}  // namespace agentspec
