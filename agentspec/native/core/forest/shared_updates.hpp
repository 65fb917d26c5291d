// The updates that a batch makes to shared indices and models.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/forest/batch.hpp"
#include "core/forest/memory_budget.hpp"
#include "core/index/lookahead.hpp"

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

}  // namespace agentspec
