#include "core/forest/batch_step.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "core/drafting/learned_drafter.hpp"

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
    if (batch[i]->scored.last.empty() || update.tokens_of(i).empty()) continue;
    Model& model = *batch[i]->model;
    if (model.batch != num_batches_) {
      model.batch = num_batches_;
      model.task = num_models_++;
      if (models_.size() < num_models_) models_.emplace_back();
      models_[model.task].model = &model;
      models_[model.task].learners.clear();
    }
    models_[model.task].learners.push_back(i);
    std::swap(batch[i]->scored.last, batch[i]->scored.pending);
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
    if (!batch[i]->is_private)
      learn_from(batch[i]->scored.pending, update.tokens_of(i), learning.model->acceptance);
    batch[i]->scored.pending.clear();
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

namespace {

/// Smaller batches do not justify waking a thread.
constexpr std::size_t kSharedOut = 2 * Lookahead::kWalks;

BatchDrafts collect(std::span<const SourcedDraft> drafts) {
  std::size_t num_tokens = 0;
  for (const SourcedDraft& draft : drafts) num_tokens += draft.tokens.token_ids.size();
  BatchDrafts collected;
  collected.reserve(drafts.size(), num_tokens);
  for (const SourcedDraft& draft : drafts) collected.push_back(draft);
  return collected;
}

/// The end of the tokens that are ingested in advance, so that no request has more than a piece left.
std::size_t end_of_ahead(const BatchUpdate& update) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < update.requests.size(); ++i) {
    if (update.tokens_of(i).size() > SuffixIndex::kPieceTokens)
      end = static_cast<std::size_t>(update.offsets[i + 1]) - SuffixIndex::kPieceTokens;
  }
  return end;
}

}  // namespace

BatchStep::BatchStep(std::uint32_t depth, std::size_t num_threads, MemoryBudget& budget)
    : depth_(depth), budget_(budget), workers_(num_threads), scratch_(num_threads) {}

// Calls single(i, thread) for i < num_single, and block(begin, end, thread) for all requests in blocks: the
// walks of a block hide each other's cache misses, and threads don't write to neighbouring memory.
template <typename Block, typename Single>
void BatchStep::parallel_for(std::size_t num_single, std::size_t num_requests, const Block& block,
                             const Single& single) {
  constexpr std::size_t kSize = Lookahead::kWalks;
  const std::size_t num_tasks = num_single + (num_requests + kSize - 1) / kSize;
  const auto task = [&](std::size_t i, std::size_t thread) {
    if (i < num_single) return single(i, thread);
    const std::size_t begin = (i - num_single) * kSize;
    block(begin, std::min(begin + kSize, num_requests), thread);
  };
  if (num_requests >= kSharedOut) return workers_.run(num_tasks, std::ref(task));
  for (std::size_t i = 0; i < num_tasks; ++i) task(i, 0);
}

void BatchStep::expect(std::size_t num_requests) {
  if (num_requests >= kSharedOut) workers_.wake();
}

bool BatchStep::is_in_pieces(const BatchUpdate& update) { return end_of_ahead(update) > 0; }

void BatchStep::ingest(const RequestBatch& batch, const BatchUpdate& update,
                       std::unique_lock<FairMutex>& lock) {
  ingest_all(batch, update, std::nullopt, lock);
}

BatchDrafts BatchStep::step(const RequestBatch& batch, const BatchUpdate& update, const DraftLimits& limits,
                            bool is_deferrable, std::unique_lock<FairMutex>& lock) {
  if (drafts_.size() < batch.size()) drafts_.resize(batch.size());
  if (is_deferrable && !is_in_pieces(update)) {
    defer_updates(batch, update);
    draft_before_ingest(batch, update, limits);
    deferred_.is_waiting = true;
  } else {
    ingest_all(batch, update, limits, lock);
    draft_after_ingest(batch, limits);
  }
  for (Request* request : batch) budget_.account_scored(*request);
  budget_.balance();
  workers_.rest();
  return collect(std::span(drafts_).first(batch.size()));
}

BatchDrafts BatchStep::draft_after(const RequestBatch& batch, const BatchUpdate& update,
                                   const DraftLimits& limits) {
  DraftScratch& scratch = scratch_[0];
  BatchDrafts drafts;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    agentspec::draft_after(*batch[i], update.tokens_of(i), limits.options_for(*batch[i]), scratch);
    drafts.push_back(scratch.draft);
  }
  return drafts;
}

// ---- deferred updates ---------------------------------------------------------------------------------

// Requests and indices stay until the updates are applied: a call that removes one applies them first.
void BatchStep::defer_updates(const RequestBatch& batch, const BatchUpdate& update) {
  deferred_.batch = batch;
  deferred_.tokens.assign(update.tokens.begin(), update.tokens.end());
  deferred_.offsets.assign(update.offsets.begin(), update.offsets.end());
  updates_.gather(batch, update);
}

void BatchStep::apply_deferred() {
  deferred_.is_waiting = false;
  const RequestBatch& batch = deferred_.batch;
  const BatchUpdate update{{}, deferred_.tokens, deferred_.offsets};
  Lookahead& lookahead = scratch_[0].lookahead;
  for (std::size_t i = 0; i < updates_.size(); ++i)
    updates_.apply_update(i, batch, update, budget_, lookahead);
  for (std::size_t begin = 0; begin < batch.size(); begin += Lookahead::kWalks) {
    append_block(batch, update, begin, std::min(begin + Lookahead::kWalks, batch.size()), lookahead);
  }
  account(batch, update);
  for (Request* request : batch) begin_matches(*request);
}

// ---- ingest -------------------------------------------------------------------------------------------

// Ingests long output in advance, in pieces that release the lock in between. Batch order holds, so that an
// index learns it as in one piece. Then the rest follows, with a part of each request.
void BatchStep::ingest_all(const RequestBatch& batch, const BatchUpdate& update,
                           const std::optional<DraftLimits>& limits, std::unique_lock<FairMutex>& lock) {
  const std::size_t end = end_of_ahead(update);
  if (end == 0) return ingest_piece(batch, update, limits);
  for (std::size_t begin = 0; begin < end; begin += SuffixIndex::kPieceTokens) {
    ingest_part(batch, update, begin, std::min(begin + SuffixIndex::kPieceTokens, end), std::nullopt);
    lock.unlock();
    lock.lock();
    if (has_deferred()) apply_deferred();
  }
  ingest_part(batch, update, end, update.tokens.size(), limits);
}

// Ingests the tokens from `begin` to `end`. Requests without any take part only if drafts are needed.
void BatchStep::ingest_part(const RequestBatch& batch, const BatchUpdate& update, std::size_t begin,
                            std::size_t end, const std::optional<DraftLimits>& limits) {
  RequestBatch part;
  std::vector<std::int64_t> offsets{0};
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::size_t last = std::clamp(static_cast<std::size_t>(update.offsets[i + 1]), begin, end) - begin;
    if (!limits && static_cast<std::int64_t>(last) == offsets.back()) continue;
    part.push_back(batch[i]);
    offsets.push_back(static_cast<std::int64_t>(last));
  }
  ingest_piece(part, {{}, update.tokens.subspan(begin, end - begin), offsets}, limits);
}

void BatchStep::ingest_piece(const RequestBatch& batch, const BatchUpdate& update,
                             const std::optional<DraftLimits>& limits) {
  updates_.gather(batch, update);
  const auto ingest_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    DraftScratch& scratch = scratch_[thread];
    append_block(batch, update, begin, end, scratch.lookahead);
    for (std::size_t i = begin; i < end; ++i) {
      batch[i]->extend_context(update.tokens_of(i), depth_);
      if (!limits || batch[i]->model != nullptr) continue;
      draft_from_own_index(*batch[i], batch[i]->own.tail(), limits->options_for(*batch[i]), scratch);
      std::swap(drafts_[i], scratch.draft);  // each thread writes to its own memory
    }
  };
  parallel_for(updates_.size(), batch.size(), ingest_block, [&](std::size_t i, std::size_t thread) {
    updates_.apply_update(i, batch, update, budget_, scratch_[thread].lookahead);
  });
  account(batch, update);
}

void BatchStep::append_block(const RequestBatch& batch, const BatchUpdate& update, std::size_t begin,
                             std::size_t end, Lookahead& lookahead) {
  prefetch(std::span(batch).subspan(begin, end - begin));
  for (std::size_t i = begin; i < end; ++i) {
    if (!batch[i]->own) continue;
    lookahead.add_append(batch[i]->own.automaton(), batch[i]->own->tail(), update.tokens_of(i));
  }
  lookahead.run();
  for (std::size_t i = begin; i < end; ++i) batch[i]->own.append(update.tokens_of(i));
}

void BatchStep::account(const RequestBatch& batch, const BatchUpdate& update) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->own.is_ready()) budget_.account_own(*batch[i], update.tokens_of(i).size());
  }
  updates_.account(budget_);
}

// ---- drafts -------------------------------------------------------------------------------------------

// All indices have the output: a request's sequence is the longest possible match.
void BatchStep::draft_after_ingest(const RequestBatch& batch, const DraftLimits& limits) {
  const auto draft_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    DraftScratch& scratch = scratch_[thread];
    const auto block = std::span(batch).subspan(begin, end - begin);
    prefetch(block);
    follow_links(block, true, scratch.lookahead);
    for (const Request* request : block) {
      if (request->model && request->own) {
        scratch.lookahead.add_draft(request->own.automaton(), request->own->tail());
      }
    }
    scratch.lookahead.run();
    for (std::size_t i = begin; i < end; ++i) {
      std::swap(drafts_[i], scratch.draft);
      improve_draft(*batch[i], batch[i]->own.tail(), limits.options_for(*batch[i]), scratch);
      std::swap(drafts_[i], scratch.draft);
    }
  };
  parallel_for(0, batch.size(), draft_block, [](std::size_t, std::size_t) {});
}

// The output is not learned yet: all indices, also the requests' own, are only read.
void BatchStep::draft_before_ingest(const RequestBatch& batch, const BatchUpdate& update,
                                    const DraftLimits& limits) {
  const auto draft_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    DraftScratch& scratch = scratch_[thread];
    const auto block = std::span(batch).subspan(begin, end - begin);
    prefetch(block);
    for (std::size_t i = begin; i < end; ++i) {
      begin_matches(*batch[i]);
      batch[i]->extend_context(update.tokens_of(i), depth_);
      if (!batch[i]->own) continue;
      batch[i]->own_match.look_ahead(batch[i]->own.automaton(), batch[i]->context, update.tokens_of(i).size(),
                                     scratch.lookahead);
    }
    follow_links(block, false, scratch.lookahead);
    for (std::size_t i = begin; i < end; ++i) {
      if (!batch[i]->own) continue;
      const Automaton& own = batch[i]->own.automaton();
      scratch.lookahead.add_draft(
          own, batch[i]->own_match.follow(own, batch[i]->context, update.tokens_of(i).size(), {}));
    }
    scratch.lookahead.run();
    for (std::size_t i = begin; i < end; ++i) {
      const DraftOptions options = limits.options_for(*batch[i]);
      const Cursor own = batch[i]->own_match.longest();
      std::swap(drafts_[i], scratch.draft);
      if (!batch[i]->model) draft_from_own_index(*batch[i], own, options, scratch);
      improve_draft(*batch[i], own, options, scratch);
      std::swap(drafts_[i], scratch.draft);
    }
  };
  parallel_for(0, batch.size(), draft_block, [](std::size_t, std::size_t) {});
}

}  // namespace agentspec
