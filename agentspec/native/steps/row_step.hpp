// A step of rows that one thread plans and another runs, e.g. as a host function of a CUDA stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "steps/rows.hpp"

namespace agentspec {

constexpr std::int64_t kModelDrafts = -1;

/// Where a step's samples arrive, and where its drafts are written: memory of the engine, row after row. Read
/// and written only by run().
struct StepBuffers {
  const std::int32_t* num_sampled = nullptr;  // per row
  const std::int64_t* sampled = nullptr;      // `sampled_width` per row, of which num_sampled count
  std::size_t sampled_width = 0;
  // `draft_width` per row: the draft, then padding; kModelDrafts first if the engine's model drafts
  std::int64_t* drafts = nullptr;
  float* chances = nullptr;  // of each token, if those before it are accepted; 0 for padding. May be null.
  std::size_t draft_width = 0;
};

/// A failure costs drafts only: the rows are lost and get padding. Padding repeats the last token of a row,
/// as it must be a token of the model.
class RowStep {
 public:
  struct Row {
    std::string name;
    std::size_t num_slots = 0;  // that the step verifies
    float least = 0;            // see RowBatch::Row, and for these:
    std::vector<std::int32_t> dictated = {};
  };

  /// `rows` and all buffers must live until run() has returned. The engine's model offers `num_model` draft
  /// tokens for each row. Throws ConfigError if a width can't be.
  RowStep(LiveRows& rows, std::vector<Row> planned, const StepBuffers& buffers, double min_prob,
          std::size_t num_model = 0);
  RowStep(const RowStep&) = delete;
  RowStep& operator=(const RowStep&) = delete;

  /// Ingests the samples and writes the drafts. Once, by any thread; needs no GIL.
  void run() noexcept;
  /// True once run() has returned. Everything below may be read then.
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

  const RowDrafts& made() const { return made_; }
  std::span<const std::int32_t> sampled(std::size_t row) const { return batch_[row].sampled; }
  std::size_t num_rows() const { return planned_.size(); }
  std::size_t draft_width() const { return buffers_.draft_width; }  // most draft tokens of a row
  /// Counts the time of the step for its rows, as LiveRows::count_saving() does.
  void count_saving(const StepSaving& saving);
  double begin_s() const { return begin_s_; }  // of a monotonic clock
  double took_s() const { return took_s_; }
  const std::string& error() const { return error_; }  // empty: there was none

 private:
  void read_samples();
  void write_drafts();

  LiveRows& rows_;
  const std::vector<Row> planned_;
  const StepBuffers buffers_;
  const double min_prob_;
  const std::size_t num_model_;
  std::vector<std::int32_t> tokens_;  // sampled, by row
  std::vector<RowBatch::Row> batch_;
  RowDrafts made_;
  double begin_s_ = 0;
  double took_s_ = 0;
  std::string error_;
  std::atomic<bool> is_done_ = false;
};

/// The signature of a CUDA host function. `step` is a RowStep.
void run_row_step(void* step) noexcept;

}  // namespace agentspec
