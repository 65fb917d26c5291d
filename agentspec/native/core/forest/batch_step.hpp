// A decode step of a batch: ingests its new output and drafts for it.
//
// There are two rounds, each shared among the threads. First, every shared index ingests the output of its
// requests, in batch order. Every model learns the outcome of their last drafts. Every request ingests its
// own output and drafts from its own index. Then every request drafts from the shared indices, or from all of
// them by its model. The content of an index or a model, and the reads from it, thus never depend on the
// threads.
//
// Updates of the shared indices and models may be deferred. Drafts then see them as of the last step, and a
// thread applies the updates while the model runs. A call that arrives earlier applies the rest, so their
// content never depends on time either.
//
// Memory that a batch needs is allocated before the rounds and after them. In between, if memory runs out,
// indices are emptied, requests lose theirs and drafts are left out, but nothing throws.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/forest/batch.hpp"
#include "core/forest/memory_budget.hpp"
#include "core/index/match.hpp"
#include "core/threads/fair_mutex.hpp"
#include "core/threads/worker_pool.hpp"

namespace agentspec {

/// One update per index and per model, each with the requests that it learns from in batch order. The content
/// of an index or a model thus does not depend on the threads. Keeps its memory from batch to batch.
class SharedUpdates {
 public:
  /// Collects the updates of a batch. Removes the outcome of the requests' last drafts from them, for
  /// apply_update(). O(tokens and links of the batch). Throws std::bad_alloc.
  void gather(const RequestBatch& batch, const BatchUpdate& update);
  std::size_t size() const { return num_indices_ + num_models_; }
  /// Applies one of the size() updates of the gathered batch. Different updates may run on different threads.
  void apply_update(std::size_t i, const RequestBatch& batch, const BatchUpdate& update,
                    const MemoryBudget& budget, Lookahead& lookahead);
  /// Counts the changed indices, and enforces the limits.
  void account(MemoryBudget& budget) const;

 private:
  struct IndexUpdate {
    Shared* shared;
    std::size_t num_tokens;
    std::size_t work;  // that was done to make room
    std::vector<std::pair<std::size_t, SequenceId>> learners;
  };
  struct ModelUpdate {
    Model* model;
    std::vector<std::size_t> learners;
  };

  void gather_indices(const RequestBatch& batch, const BatchUpdate& update);
  void gather_models(const RequestBatch& batch, const BatchUpdate& update);
  static void append_batch(IndexUpdate& growing, const BatchUpdate& update, const MemoryBudget& budget,
                           Lookahead& lookahead);
  static void train(const ModelUpdate& learning, const RequestBatch& batch, const BatchUpdate& update);

  std::vector<IndexUpdate> indices_;  // the first num_indices_ are in use
  std::size_t num_indices_ = 0;
  std::vector<ModelUpdate> models_;  // the first num_models_ are in use
  std::size_t num_models_ = 0;
  std::uint64_t num_batches_ = 0;
};

/// Not thread-safe: every call but expect() needs the forest's lock. Requests of a batch and their indices
/// must live until the call returns, those of a deferred update until apply_deferred().
class BatchStep {
 public:
  /// Throws ConfigError.
  BatchStep(std::uint32_t depth, std::size_t num_threads, MemoryBudget& budget);

  /// True if the update's output is long and ingested in pieces, with the lock released in between.
  static bool is_in_pieces(const BatchUpdate& update);
  /// Announces a batch of `num_requests` requests, so that sleeping threads wake up in time. Needs no lock.
  void expect(std::size_t num_requests);
  void start_threads() { workers_.start_threads(); }
  /// Ingests the output without drafting.
  void ingest(const RequestBatch& batch, const BatchUpdate& update, std::unique_lock<FairMutex>& lock);
  /// Ingests the output, then drafts. With `is_deferrable`, updates of shared indices and models are deferred
  /// unless the output is ingested in pieces.
  BatchDrafts step(const RequestBatch& batch, const BatchUpdate& update, const DraftLimits& limits,
                   bool is_deferrable, std::unique_lock<FairMutex>& lock);
  /// Drafts as if the update's tokens followed the output. Changes nothing.
  BatchDrafts draft_after(const RequestBatch& batch, const BatchUpdate& update, const DraftLimits& limits);
  /// Updates are deferred by step(). Every call that reads or changes an index or a model applies them first.
  bool has_deferred() const { return deferred_.is_waiting; }
  void apply_deferred();

 private:
  /// limits: for drafts from the requests' own indices.
  void ingest_all(const RequestBatch& batch, const BatchUpdate& update,
                  const std::optional<DraftLimits>& limits, std::unique_lock<FairMutex>& lock);
  void ingest_part(const RequestBatch& batch, const BatchUpdate& update, std::size_t begin, std::size_t end,
                   const std::optional<DraftLimits>& limits);
  void ingest_piece(const RequestBatch& batch, const BatchUpdate& update,
                    const std::optional<DraftLimits>& limits);
  void append_block(const RequestBatch& batch, const BatchUpdate& update, std::size_t begin, std::size_t end,
                    Lookahead& lookahead);
  void account(const RequestBatch& batch, const BatchUpdate& update);
  void defer_updates(const RequestBatch& batch, const BatchUpdate& update);
  void draft_after_ingest(const RequestBatch& batch, const DraftLimits& limits);
  void draft_before_ingest(const RequestBatch& batch, const BatchUpdate& update, const DraftLimits& limits);
  template <typename Block, typename Single>
  void parallel_for(std::size_t num_single, std::size_t num_requests, const Block& block,
                    const Single& single);

  const std::uint32_t depth_;
  MemoryBudget& budget_;
  SharedUpdates updates_;  // of the current batch, or of the deferred one
  struct {                 // a batch with deferred updates
    bool is_waiting = false;
    RequestBatch batch;
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> offsets;
  } deferred_;
  WorkerPool workers_;
  std::vector<DraftScratch> scratch_;  // one per thread
  std::vector<SourcedDraft> drafts_;   // one per request of the batch
};

}  // namespace agentspec
