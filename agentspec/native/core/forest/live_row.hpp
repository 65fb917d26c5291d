// A live request as a row of an engine's batch: its state, and the results of its drafts.
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
#include "core/steps/step_saving.hpp"

namespace agentspec {

/// Sums over a request's steps. Draft tokens are counted by source; an engine's padding has none.
struct RowCounts {
  std::int64_t num_output_tokens = 0;
  std::int64_t num_steps = 0;    // with output, except the one with the first token
  std::int64_t num_drafts = 0;   // that were verified
  double decode_s = 0;           // from the first token to the last
  double measured_decode_s = 0;  // the part of steps with a known time without drafts
  double plain_decode_s = 0;     // time of these steps without drafts
  std::array<std::int64_t, kModelSource + 1> drafted{};
  std::array<std::int64_t, kModelSource + 1> accepted{};
  std::array<std::int64_t, kNumOrigins> accepted_by_origin{};

  RowCounts& operator+=(const RowCounts& other);
  /// Returns the counts of a step as if it had given only its first `num_tokens` tokens, at least one.
  RowCounts first(std::int64_t num_tokens) const;
};

/// Finds a request's end: what follows it is not learned, counted or drafted for. A row is counted before it
/// enters the core. When it enters, the core receives the earlier tokens.
///
/// A row whose text is in doubt is lost: it is counted, but nothing is learned or drafted any more.
///
/// The output of a held row may turn out to have ended earlier, e.g. at a stop string. It has no parts, and
/// its counts are kept by step until it is removed.
class LiveRow {
 public:
  /// Prompt and output together have at most `most_tokens` tokens; any of `stops` ends the output.
  LiveRow(std::size_t num_prompt_tokens, std::size_t most_tokens, std::vector<std::int32_t> stops,
          bool keeps_output = false, bool is_held = false)
      : num_prompt_tokens_(num_prompt_tokens),
        num_tokens_(num_prompt_tokens),
        most_tokens_(most_tokens),
        stops_(std::move(stops)),
        keeps_output_(keeps_output),
        is_held_(is_held) {}

  /// The result of a step, before any state changes.
  struct Gain {
    std::span<const std::int32_t> tokens;  // up to the end of the output
    std::size_t room = 0;                  // for a draft; the bonus token is subtracted
    bool is_end = false;
    bool is_cut = false;  // the step sampled further tokens, so these are all of its draft
  };

  /// Its id in the core, after enter() and until it is lost.
  std::optional<std::uint64_t> request() const { return request_; }
  void enter(std::uint64_t request) {
    if (!is_lost_) request_ = request;
  }
  void lose() {
    is_lost_ = true;
    request_.reset();
    pending_.clear();
  }
  /// Gives the row up, and its output too: the core may have received other tokens.
  void doubt() {
    lose();
    output_.clear();
  }
  /// The output that the core has received, if it is kept; none if that is in doubt.
  const std::vector<std::int32_t>& output() const { return output_; }
  /// Returns the new tokens of the output, if it is kept, not held, and has enough of them; otherwise none.
  /// Enough are `least` tokens, and as many as were returned before, up to `most_more`.
  std::vector<std::int32_t> take_part(std::size_t least, std::size_t most_more);
  void resume(std::size_t num_tokens) {
    num_drafted_ = 0;
    if (num_tokens != num_tokens_ && !is_ended_) lose();
  }
  /// True once its first token is known.
  bool has_output() const { return has_output_; }
  /// Tokens of prompt and output; none after the output's end.
  std::size_t num_tokens() const { return num_tokens_; }
  std::size_t num_output_tokens() const { return num_tokens_ - num_prompt_tokens_; }
  /// True if the output ended by itself: at a stop token, or at its greatest length.
  bool is_ended() const { return is_ended_; }
  /// The part of `num_slots` verified slots that held its last draft. The rest held padding.
  std::size_t num_verified(std::size_t num_slots) const { return std::min(num_slots, num_drafted_); }
  SourceId source() const { return source_; }
  /// What the last step gave the output: new tokens, and the source of the draft that it verified, if any.
  std::pair<std::size_t, SourceId> last_gain() const { return {num_gained_, gained_from_}; }

  /// Returns the result of a step that sampled these tokens.
  Gain gain(std::span<const std::int32_t> sampled) const;
  /// Output that the core has not received yet.
  std::span<const std::int32_t> pending() const { return pending_; }
  /// Allocates what complete_step() needs. May throw; changes nothing.
  void reserve(const Gain& gain) {
    if (!request_ && !is_lost_) pending_.reserve(pending_.size() + gain.tokens.size());
    const std::size_t num_kept = output_.size() + pending_.size() + gain.tokens.size();
    if (request_ && keeps_output_ && num_kept > output_.capacity()) output_.reserve(2 * num_kept);
    if (is_held_ && steps_.size() == steps_.capacity()) steps_.reserve(2 * steps_.size() + 16);
  }
  /// A draft that the next step is to verify.
  struct Drafted {
    SourceId source = kNoSource;
    std::size_t size = 0;
    std::span<const Origin> origins;  // of its tokens, if trees drafted them
    float forgone = 0;                // what the trees' draft was worth, if the model drafts instead
  };
  /// What came of a draft of the model.
  struct ModelResult {
    std::size_t num_verified = 0;  // 0: the step verified none
    std::size_t num_accepted = 0;
    float forgone = 0;
  };
  /// Returns the result for a step with this gain, before complete_step().
  ModelResult model_result(const Gain& gain, std::size_t num_slots) const;
  /// Completes the step, which verified `num_slots` slots. `gain` must be reserved.
  void complete_step(const Gain& gain, std::size_t num_slots, const Drafted& draft, double now_s);
  /// Counts the time of a step that gave it `num_new` tokens.
  void count_saving(std::size_t num_new, const StepSaving& saving) {
    RowCounts& counts = steps_.empty() ? counts_ : steps_.back();
    counts.measured_decode_s += saving.measured_s;
    counts.plain_decode_s += saving.plain_s(num_new);
  }
  /// Returns the counts since the last call, and resets them; none of a held row.
  RowCounts take_counts() { return std::exchange(counts_, {}); }
  /// Returns the counts that were not taken. O(steps) of a held row.
  RowCounts counts() const { return counts(num_output_tokens()); }
  /// Returns the counts of a held row up to this number of output tokens. O(steps).
  RowCounts counts(std::size_t num_tokens) const;

 private:
  void count(std::size_t num_new, std::size_t num_verified, double now_s);

  std::optional<std::uint64_t> request_;
  std::size_t num_prompt_tokens_;
  std::size_t num_tokens_;
  std::size_t most_tokens_;
  std::vector<std::int32_t> stops_;
  std::vector<std::int32_t> pending_;
  bool keeps_output_;
  bool is_held_;
  std::vector<std::int32_t> output_;   // that the core has received, if it is kept
  std::size_t num_taken_ = 0;          // of its first tokens, by take_part()
  std::size_t num_drafted_ = 0;        // in the draft that is verified next
  SourceId source_ = kNoSource;        // of that draft
  float forgone_ = 0;                  // for that draft, if the model made it
  std::array<Origin, 128> origins_{};  // of its first tokens; engines verify hardly more
  bool has_output_ = false;
  bool is_ended_ = false;
  bool is_lost_ = false;
  std::size_t num_gained_ = 0;  // by the last step
  SourceId gained_from_ = kNoSource;
  double last_s_ = 0;
  RowCounts counts_;
  std::vector<RowCounts> steps_;  // of a held row
};

}  // namespace agentspec
