// A core's live requests as rows of an engine's batch: one call per decode step.
#pragma once

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
#include "core/forest/live_row.hpp"
#include "core/steps/step_saving.hpp"

namespace agentspec {

/// A step's sampled tokens, by row.
struct RowBatch {
  struct Row {
    std::string_view name;  // may be empty if nothing was sampled
    std::span<const std::int32_t> sampled;
    std::size_t num_slots = 0;  // that the step verified: the last draft, or a part of it, and padding
    /// Tokens in the row, including those sampled, if the engine reports it. A row that ends elsewhere is
    /// lost.
    std::optional<std::size_t> end;
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
  double score = 0;  // sum over the drafts
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

/// Thread-safe, by a lock of its own. A step that throws has changed no row, with two exceptions: rows that
/// end elsewhere are lost, and after std::bad_alloc in the core all rows of that step are.
class LiveRows {
 public:
  /// The core must outlive the rows.
  explicit LiveRows(ForestCore& core) : core_(core) {}

  /// Adds a row, or replaces it. Prompt and output together have at most `most_tokens` tokens; any of `stops`
  /// ends the output. `keeps_output`: for LiveRow::output(). `is_held`: see LiveRow. `request`: for enter().
  void add(std::string_view name, std::size_t num_prompt_tokens, std::size_t most_tokens,
           std::vector<std::int32_t> stops, bool keeps_output = false,
           std::optional<RequestId> request = std::nullopt, bool is_held = false);
  /// Connects a row with a request of the core, which then drafts for it. Ignores an unknown name.
  void enter(std::string_view name, RequestId request);
  /// Continues a row whose request the engine stopped and starts anew, now with `num_tokens` tokens of prompt
  /// and output. Its draft was dropped. A row with another number of tokens is lost. Ignores an unknown name.
  void resume(std::string_view name, std::size_t num_tokens);
  /// The engine computes a row's prompt, or computes it again. A row that has output is lost: the engine
  /// drops what it sampled from a cache that failed to load. Ignores an unknown name.
  void prefill(std::string_view name);
  /// Gives a row up: it is counted, but nothing is learned or drafted for it. Ignores an unknown name.
  void lose(std::string_view name);
  /// New output of each row, by name: LiveRow::take_part() where it is not empty.
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> take_parts(std::size_t least,
                                                                            std::size_t most_more);
  /// Removes a row and returns it, lost: its output stays the same. For an unknown name the row is empty.
  LiveRow remove(std::string_view name);
  /// Returns a row's counts since the last call, and resets them.
  RowCounts take_counts(std::string_view name);
  /// Returns LiveRow::last_gain() of a row; nothing for an unknown name.
  std::pair<std::size_t, SourceId> last_gain(std::string_view name);
  /// Counts the time of the last step for each row that was decoding.
  void count_saving(const StepSaving& saving);
  /// Counts a step of one row likewise, which may be an earlier one. Ignores an unknown name.
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

  ForestCore& core_;
  std::mutex mutex_;  // guards everything below
  std::unordered_map<std::string, LiveRow, Hash, std::equal_to<>> rows_;
  std::vector<Part> parts_;  // of the last step
  std::vector<RequestId> requests_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace agentspec
