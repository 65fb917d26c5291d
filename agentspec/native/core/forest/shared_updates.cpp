#include "core/forest/shared_updates.hpp"

#include <algorithm>
#include <span>

#include "core/drafting/scored_token.hpp"

namespace agentspec {

void SharedUpdates::gather(const RequestBatch& batch, const BatchUpdate& update) {
  ++num_batches_;
  gather_indices(batch, update);
  gather_models(batch, update);
}

void SharedUpdates::gather_indices(const RequestBatch& batch, const BatchUpdate& update) {
  num_indices_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    for (const Link& link : batch[i]->links) {
      Shared& shared = *link.shared;
      if (!link.has_sequence || shared.index == nullptr) continue;
      if (shared.batch != num_batches_) {
        shared.batch = num_batches_;
        shared.task = num_indices_++;
        if (indices_.size() < num_indices_) indices_.emplace_back();
        indices_[shared.task].shared = &shared;
        indices_[shared.task].num_tokens = indices_[shared.task].work = 0;
        indices_[shared.task].learners.clear();
      }
      indices_[shared.task].num_tokens += update.tokens_of(i).size();
      indices_[shared.task].learners.emplace_back(i, link.sequence);
    }
  }
}

// Without new output the outcome of the draft is still unknown.
void SharedUpdates::gather_models(const RequestBatch& batch, const BatchUpdate& update) {
  num_models_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->scored.empty() || update.tokens_of(i).empty()) continue;
    Model& model = *batch[i]->model;
    if (model.batch != num_batches_) {
      model.batch = num_batches_;
      model.task = num_models_++;
      if (models_.size() < num_models_) models_.emplace_back();
      models_[model.task].model = &model;
      models_[model.task].learners.clear();
    }
    models_[model.task].learners.push_back(i);
    std::swap(batch[i]->scored, batch[i]->pending_outcome);
  }
}

void SharedUpdates::apply_update(std::size_t i, const RequestBatch& batch, const BatchUpdate& update,
                                 const MemoryBudget& budget, Lookahead& lookahead) {
  if (i < num_indices_) return append_batch(indices_[i], update, budget, lookahead);
  train(models_[i - num_indices_], batch, update);
}

void SharedUpdates::append_batch(IndexUpdate& growing, const BatchUpdate& update, const MemoryBudget& budget,
                                 Lookahead& lookahead) {
  SuffixIndex& index = *growing.shared->index;
  const bool is_tight = budget.is_exhausted(growing.shared->group);
  if (is_tight) growing.work = index.make_holes(growing.num_tokens);
  const bool is_full = is_tight && !index.has_holes(growing.num_tokens);
  for (std::size_t begin = 0; begin < growing.learners.size(); begin += Lookahead::kWalks) {
    const auto block = std::span(growing.learners)
                           .subspan(begin, std::min(Lookahead::kWalks, growing.learners.size() - begin));
    for (const auto& [place, sequence] : block) {
      lookahead.add_append(index.automaton(), index.tail(sequence), update.tokens_of(place));
    }
    lookahead.run();
    for (const auto& [place, sequence] : block) {
      if (is_full && !update.tokens_of(place).empty()) index.stop(sequence);
      index.append(sequence, update.tokens_of(place));
    }
  }
  index.enforce_incrementally(growing.num_tokens);
}

void SharedUpdates::train(const ModelUpdate& learning, const RequestBatch& batch, const BatchUpdate& update) {
  for (const std::size_t i : learning.learners) {
    Model& model = *learning.model;
    if (model.told == nullptr || !batch[i]->is_private) {
      model.num_new += learn_from(batch[i]->pending_outcome, update.tokens_of(i), model.acceptance);
    }
    batch[i]->pending_outcome.clear();
  }
}

void SharedUpdates::account(MemoryBudget& budget) const {
  std::size_t work_done = 0;
  for (const IndexUpdate& one : std::span(indices_).first(num_indices_)) {
    budget.account(*one.shared, one.num_tokens);
    work_done += one.work;
  }
  budget.balance(work_done);
}

}  // namespace agentspec
