// A core's live requests as rows of an engine's batch: one call per decode step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/forest/forest_core.hpp"
#include "core/forest/request.hpp"
#include "steps/step_meter.hpp"

namespace agentspec {

/// The source of a draft that the engine's own model made; the core's sources are smaller.
constexpr SourceId kModelSource = kLastSource + 1;

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

/// What a row starts with.
struct NewRow {
  std::size_t num_prompt_tokens = 0;
  std::size_t most_tokens = 0;                      // of prompt and output together
  std::vector<std::int32_t> stops = {};             // any of these tokens ends the output
  bool keeps_output = false;                        // for LiveRow::output()
  bool is_held = false;                             // see LiveRow
  std::optional<RequestId> request = std::nullopt;  // in the core; otherwise enter() follows
};

/// Finds a request's end: what follows it is not learned, counted or drafted for. A row is counted before it
/// enters the core. When it enters, the core receives the earlier tokens.
///
/// A row with uncertain text is lost: it is counted, but nothing is learned or drafted any more.
///
/// The output of a held row may turn out to have ended earlier, e.g. at a stop string: its counts are kept by
/// step until it is removed.
class LiveRow {
 public:
  explicit LiveRow(NewRow made) : made_(std::move(made)), num_tokens_(made_.num_prompt_tokens) {}

  /// The result of a step, before any state changes.
  struct Gain {
    std::span<const std::int32_t> tokens;  // up to the end of the output
    std::size_t room = 0;                  // for a draft; the bonus token is subtracted
    bool is_end = false;
    bool is_cut = false;  // the step sampled further tokens, so these are all of its draft
  };

  /// Its id in the core, after enter() and until it is lost.
  std::optional<RequestId> request() const { return made_.request; }
  void enter(RequestId request) {
    if (!is_lost_) made_.request = request;
  }
  void lose() {
    is_lost_ = true;
    made_.request.reset();
    pending_.clear();
  }
  /// Gives the row up, and its output too: the core may have received other tokens.
  void doubt() {
    lose();
    output_.clear();
  }
  /// The output that the core has received, if it is kept; none if that is in doubt.
  const std::vector<std::int32_t>& output() const { return output_; }
  void resume(std::size_t num_tokens) {
    num_drafted_ = 0;
    if (num_tokens != num_tokens_ && !is_ended_) lose();
  }
  /// True once its first token is known.
  bool has_output() const { return has_output_; }
  std::size_t num_output_tokens() const { return num_tokens_ - made_.num_prompt_tokens; }
  /// True if the output ended without an abort: at a stop token, or at its greatest length.
  bool is_ended() const { return is_ended_; }
  /// The part of `num_slots` verified slots that held its last draft. The rest held padding.
  std::size_t num_verified(std::size_t num_slots) const { return std::min(num_slots, num_drafted_); }
  SourceId source() const { return source_; }

  /// Returns the result of a step that sampled these tokens.
  Gain gain(std::span<const std::int32_t> sampled) const;
  /// Output that the core has not received yet.
  std::span<const std::int32_t> pending() const { return pending_; }
  /// Allocates what complete_step() needs. May throw; changes nothing.
  void reserve(const Gain& gain) {
    if (!made_.request && !is_lost_) pending_.reserve(pending_.size() + gain.tokens.size());
    const std::size_t num_kept = output_.size() + pending_.size() + gain.tokens.size();
    if (made_.request && made_.keeps_output && num_kept > output_.capacity()) output_.reserve(2 * num_kept);
    if (made_.is_held && steps_.size() == steps_.capacity()) steps_.reserve(2 * steps_.size() + 16);
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

  NewRow made_;  // its request: until the row is lost
  std::size_t num_tokens_;
  std::vector<std::int32_t> pending_;
  std::vector<std::int32_t> output_;   // that the core has received, if it is kept
  std::size_t num_drafted_ = 0;        // in the draft that is verified next
  SourceId source_ = kNoSource;        // of that draft
  float forgone_ = 0;                  // for that draft, if the model made it
  std::array<Origin, 128> origins_{};  // of its first tokens; engines verify hardly more
  bool has_output_ = false;
  bool is_ended_ = false;
  bool is_lost_ = false;
  double last_s_ = 0;
  RowCounts counts_;
  std::vector<RowCounts> steps_;  // of a held row
};

/// A step's sampled tokens, by row.
struct RowBatch {
  struct Row {
    std::string_view name;  // may be empty if nothing was sampled
    std::span<const std::int32_t> sampled;
    std::size_t num_slots = 0;  // that the step verified: the last draft, or a part of it, and padding
    /// What a draft of the trees must be worth, in accepted tokens less their price; otherwise the engine's
    /// model drafts.
    float least = 0;
    /// Output from this step on, as far as a grammar dictates it: the draft that the step verified, then what
    /// is dictated behind it. If the sampled tokens begin it, the rest is drafted.
    std::span<const std::int32_t> dictated = {};
  };

  std::span<const Row> rows;
};

/// Limits of a step's drafts.
struct RowLimits {
  std::uint32_t max_tokens;   // of a draft of the trees
  double min_prob;            // the price of a draft token
  std::size_t num_model = 0;  // draft tokens that the engine's model offers for each row
};

/// A step's drafts, and sums over its rows from which the cost of a step is learned.
struct RowDrafts {
  struct Row {
    std::size_t begin = 0;  // of its draft, in token_ids
    std::size_t size = 0;   // of the trees' draft, or of what a dictated one has in common with it
    std::span<const std::int32_t> dictated;  // the draft, if a grammar dictates it; the caller's memory
    std::size_t num_gained = 0;              // new tokens of the step, up to the end of the output
    SourceId source = kNoSource;             // of the draft that the step verified, if any
    bool was_decoding = false;               // before the step
    std::size_t num_model = 0;               // tokens that the engine's model drafts, in place of the trees
    LiveRow::ModelResult model;              // of the draft that the step verified, if the model made it
  };

  std::vector<std::int32_t> token_ids;
  std::vector<float> chances;  // of each token: the estimated probability that it is accepted
  std::vector<Row> rows;
  // Rows that were decoding before the step, the slots that they verified, and their new tokens.
  std::size_t num_decoding = 0;
  std::size_t num_slots = 0;
  std::size_t num_new = 0;

  /// The tokens that the next step verifies for a row.
  std::span<const std::int32_t> of(std::size_t row) const {
    if (!rows[row].dictated.empty()) return rows[row].dictated;
    return std::span(token_ids).subspan(rows[row].begin, rows[row].size);
  }
};

/// Thread-safe, by a lock of its own. A step that throws has changed no row, with one exception: after
/// std::bad_alloc in the core all rows of that step are lost.
class LiveRows {
 public:
  /// The core must outlive the rows.
  explicit LiveRows(ForestCore& core) : core_(core) {}

  /// Adds a row, or replaces it.
  void add(std::string_view name, NewRow made);
  /// Connects a row with a request of the core, which then drafts for it. Ignores an unknown name.
  void enter(std::string_view name, RequestId request);
  /// Continues a row whose request the engine preempted and starts again, now with `num_tokens` tokens of
  /// prompt and output. Its draft was dropped. A row with another number of tokens is lost. Ignores an
  /// unknown name.
  void resume(std::string_view name, std::size_t num_tokens);
  /// The engine computes a row's prompt, or computes it again. A row that has output is lost: the engine
  /// drops tokens sampled from a cache that failed to load. Ignores an unknown name.
  void prefill(std::string_view name);
  /// Gives a row up: it is counted, but nothing is learned or drafted for it. Ignores an unknown name.
  void lose(std::string_view name);
  /// Removes a row and returns it, lost: its output stays the same. For an unknown name the row is empty.
  LiveRow remove(std::string_view name);
  /// Returns a row's counts since the last call, and resets them.
  RowCounts take_counts(std::string_view name);
  /// Counts the time of a step that gave a row `num_new` tokens. Ignores an unknown name.
  void count_row_saving(std::string_view name, std::size_t num_new, const StepSaving& saving);

  /// Announces a batch of `num_rows` rows, so that sleeping threads wake up in time. Throws ForkedError.
  void expect(std::size_t num_rows);
  /// Ingests a step's output and drafts for the next step. Updates of shared indices and models are deferred.
  /// Ignores rows without sampled tokens, and rows that were not added. Throws ForkedError, and what
  /// ForestCore::step throws.
  RowDrafts step(const RowBatch& batch, const RowLimits& limits, double now_s);

 private:
  struct Part {  // a row that takes part in the current step
    std::size_t place;
    LiveRow* row;
    LiveRow::Gain gain;
    std::size_t num_slots;
    bool was_decoding;  // before this step
    float least;
    std::span<const std::int32_t> dictated;  // behind the sampled tokens
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  void check_usable() const;
  LiveRow* find(std::string_view name);
  void gather(const RowBatch& batch);
  BatchDrafts draft(const RowLimits& limits);
  RowDrafts complete(BatchDrafts&& drafts, std::vector<RowDrafts::Row>&& rows, const RowLimits& limits,
                     double now_s);
  static LiveRow::Drafted from_trees(const Part& part, const BatchDrafts& drafts, std::size_t number,
                                     const RowLimits& limits, RowDrafts::Row& row);
  static void offer_to_model(const Part& part, const BatchDrafts& drafts, const RowLimits& limits,
                             RowDrafts::Row& row, LiveRow::Drafted& draft);

  ForestCore& core_;
  std::mutex mutex_;  // guards everything below
  std::unordered_map<std::string, LiveRow, Hash, std::equal_to<>> rows_;
  std::vector<Part> parts_;  // of the step
  std::vector<RequestId> requests_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace agentspec
