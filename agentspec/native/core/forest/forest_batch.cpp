// ForestCore::step: takes a batch's new output and returns its drafts.
//
// There are two rounds, each shared among the threads. First, every shared index takes the output of its
// requests, in batch order. Every model learns the outcome of their last drafts. Every request takes its own
// output and drafts from its own index. Then every request drafts from the shared indices, or from all of
// them by its model. The content of an index or a model, and the reads from it, thus never depend on the
// threads.
//
// Updates of the shared indices and models may be deferred. Drafts then see them as of the last step, and a
// thread applies the updates while the model runs. A call that arrives earlier applies the rest, so their
// content never depends on time either.
//
// Memory that a batch needs is allocated before the rounds and after them. In between, if memory runs out,
// indices are emptied, requests lose theirs and drafts are left out, but nothing throws.

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/forest/forest_core.hpp"
#include "core/tokens.hpp"

namespace agentspec {
namespace {

/// Smaller batches do not justify waking a thread.
constexpr std::size_t kSharedOut = 2 * Lookahead::kWalks;

/// Brings requests into the caches, level by level.
void prefetch(std::span<Request* const> block) {
  for (const Request* request : block) {
    for (std::size_t i = 0; i < sizeof(Request); i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(request) + i);
    }
  }
  for (const Request* request : block) {
    if (request->has_own()) request->own->prefetch();
    __builtin_prefetch(request->links.data());
    __builtin_prefetch(request->context.data() + request->context.size());
  }
}

BatchDrafts collect(std::span<const SourcedDraft> drafts) {
  std::size_t num_tokens = 0;
  for (const SourcedDraft& draft : drafts) num_tokens += draft.tokens.token_ids.size();
  BatchDrafts collected;
  collected.reserve(drafts.size(), num_tokens);
  for (const SourcedDraft& draft : drafts) collected.push_back(draft);
  return collected;
}

/// The end of the tokens that are taken in advance, so that no request has more than a piece left.
std::size_t end_of_ahead(const BatchUpdate& update) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < update.requests.size(); ++i) {
    if (update.tokens_of(i).size() > SuffixIndex::kPieceTokens)
      end = static_cast<std::size_t>(update.offsets[i + 1]) - SuffixIndex::kPieceTokens;
  }
  return end;
}

/// Calls visit(request, link, index) for the present shared indices of requests that need drafts.
template <typename Visit>
void for_each_link(std::span<Request* const> block, const Visit& visit) {
  for (Request* request : block) {
    if (request->options.max_tokens == 0 && !request->model) continue;
    for (Link& link : request->links) {
      if (link.shared->index != nullptr) visit(*request, link, *link.shared->index);
    }
  }
}

}  // namespace

// Calls single(i, thread) for i < num_single, and block(begin, end, thread) for all requests in blocks: the
// walks of a block hide each other's cache misses, and threads don't write to neighbouring memory.
template <typename Block, typename Single>
void ForestCore::share_out(std::size_t num_single, std::size_t num_requests, const Block& block,
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

void ForestCore::observe(const BatchUpdate& update) {
  check_tokens(update.tokens);
  std::unique_lock lock = enter();
  const Batch batch = resolve(update);
  const auto kept = keep(update);
  take_in_pieces(batch, update, std::nullopt, lock);
}

void ForestCore::expect(std::size_t num_requests) {
  if (num_requests >= kSharedOut) workers_.wake();
}

BatchDrafts ForestCore::step(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob,
                             bool learn_later) {
  check_tokens(update.tokens);
  std::unique_lock lock = enter();
  const Batch batch = resolve(update);
  const auto kept = keep(update);
  if (drafts_.size() < batch.size()) drafts_.resize(batch.size());
  const Wanted wanted{max_tokens, min_prob};
  const bool is_left = learn_later && end_of_ahead(update) == 0;
  if (is_left) {
    leave(batch, update);
    draft_ahead(batch, update, wanted);
    left_.is_waiting = true;
  } else {
    take_in_pieces(batch, update, wanted, lock);
    draft_from_shared(batch, wanted);
  }
  for (Request* request : batch) account_considered(*request);
  balance();
  workers_.rest();
  BatchDrafts drafts = collect(std::span(drafts_).first(batch.size()));
  lock.unlock();
  if (is_left) learn_beside();
  return drafts;
}

// ---- deferred updates ---------------------------------------------------------------------------------

// Acquires the lock and applies all deferred updates.
std::unique_lock<FairMutex> ForestCore::enter() {
  std::unique_lock lock(mutex_);
  if (left_.is_waiting) learn_left();
  return lock;
}

void ForestCore::learn_left() {
  left_.is_waiting = false;
  const BatchUpdate update{{}, left_.tokens, left_.offsets};
  const std::span<Request* const> batch = left_.batch;
  for (std::size_t i = 0; i < num_growths_ + num_lessons_; ++i) study(i, left_.batch, update, scratch_[0]);
  for (std::size_t begin = 0; begin < batch.size(); begin += Lookahead::kWalks) {
    append_block(left_.batch, update, begin, std::min(begin + Lookahead::kWalks, batch.size()), scratch_[0]);
  }
  account_taken(left_.batch, update);
  account_growths();
  for (Request* request : batch) begin_matches(*request);
}

void ForestCore::learn_beside() noexcept {
  try {
    learner_.submit([this] { enter(); });
  } catch (const std::bad_alloc&) {  // the next call applies them
  }
}

// Requests and indices stay until the updates are applied: a call that removes one has to enter().
void ForestCore::leave(const Batch& batch, const BatchUpdate& update) {
  left_.batch = batch;
  left_.tokens.assign(update.tokens.begin(), update.tokens.end());
  left_.offsets.assign(update.offsets.begin(), update.offsets.end());
  gather_growths(batch, update);
  gather_lessons(batch, update);
}

// ---- the rounds ---------------------------------------------------------------------------------------

// Checks a whole batch before anything is changed.
ForestCore::Batch ForestCore::resolve(const BatchUpdate& update) {
  Batch batch;
  batch.reserve(update.requests.size());
  ++num_batches_;
  for (const RequestId id : update.requests) {
    Request& named = request(id);
    if (named.batch == num_batches_)
      throw DuplicateIdError("request " + std::to_string(id) + " occurs twice in one batch");
    named.batch = num_batches_;
    batch.push_back(&named);
  }
  return batch;
}

// Returns the requests of a batch that is taken in pieces: other threads may finish them in between.
std::vector<std::shared_ptr<Request>> ForestCore::keep(const BatchUpdate& update) const {
  std::vector<std::shared_ptr<Request>> kept;
  if (end_of_ahead(update) == 0) return kept;
  for (const RequestId id : update.requests) kept.push_back(requests_.at(id));
  return kept;
}

// Takes long output in advance, in pieces that release the lock in between. Batch order holds, so that an
// index learns it as in one piece. Then the rest follows, with a part of each request.
void ForestCore::take_in_pieces(const Batch& batch, const BatchUpdate& update,
                                const std::optional<Wanted>& wanted, std::unique_lock<FairMutex>& lock) {
  const std::size_t end = end_of_ahead(update);
  if (end == 0) return take(batch, update, wanted);
  for (std::size_t begin = 0; begin < end; begin += SuffixIndex::kPieceTokens) {
    take_part(batch, update, begin, std::min(begin + SuffixIndex::kPieceTokens, end), std::nullopt);
    lock.unlock();
    lock = enter();
  }
  take_part(batch, update, end, update.tokens.size(), wanted);
}

// Takes the tokens from `begin` to `end`. Requests without any take part only if drafts are needed.
void ForestCore::take_part(const Batch& batch, const BatchUpdate& update, std::size_t begin, std::size_t end,
                           const std::optional<Wanted>& wanted) {
  Batch part;
  std::vector<std::int64_t> offsets{0};
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::size_t last = std::clamp(static_cast<std::size_t>(update.offsets[i + 1]), begin, end) - begin;
    if (!wanted && static_cast<std::int64_t>(last) == offsets.back()) continue;
    part.push_back(batch[i]);
    offsets.push_back(static_cast<std::int64_t>(last));
  }
  take(part, {{}, update.tokens.subspan(begin, end - begin), offsets}, wanted);
}

void ForestCore::take(const Batch& batch, const BatchUpdate& update, const std::optional<Wanted>& wanted) {
  gather_growths(batch, update);
  gather_lessons(batch, update);
  const auto take_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    Scratch& scratch = scratch_[thread];
    append_block(batch, update, begin, end, scratch);
    for (std::size_t i = begin; i < end; ++i) {
      batch[i]->extend_context(update.tokens_of(i), depth_);
      if (!wanted || batch[i]->model != nullptr) continue;
      draft_from_own(*batch[i], tail_of_own(*batch[i]), wanted->of(*batch[i]), scratch);
      std::swap(drafts_[i], scratch.draft);  // each thread writes to its own memory
    }
  };
  share_out(num_growths_ + num_lessons_, batch.size(), take_block,
            [&](std::size_t i, std::size_t thread) { study(i, batch, update, scratch_[thread]); });
  account_taken(batch, update);
  account_growths();
}

void ForestCore::append_block(const Batch& batch, const BatchUpdate& update, std::size_t begin,
                              std::size_t end, Scratch& scratch) {
  prefetch(std::span(batch).subspan(begin, end - begin));
  for (std::size_t i = begin; i < end; ++i) {
    if (!batch[i]->has_own()) continue;
    scratch.lookahead.add_append(batch[i]->own->automaton(), batch[i]->own->tail(), update.tokens_of(i));
  }
  scratch.lookahead.run();
  for (std::size_t i = begin; i < end; ++i) append(*batch[i], update.tokens_of(i));
}

void ForestCore::account_taken(const Batch& batch, const BatchUpdate& update) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->own_state == OwnIndex::kReady) account_own(*batch[i], update.tokens_of(i).size());
  }
}

// Updates one of the indices that grow, or of the models that learn.
void ForestCore::study(std::size_t i, const Batch& batch, const BatchUpdate& update, Scratch& scratch) {
  if (i < num_growths_) return grow(growths_[i], update, scratch.lookahead);
  teach(lessons_[i - num_growths_], batch, update);
}

void ForestCore::account_growths() {
  std::size_t work_done = 0;
  for (const Growth& growth : std::span(growths_).first(num_growths_)) {
    account(*growth.shared, growth.num_tokens);
    work_done += growth.work;
  }
  balance(work_done);
}

void ForestCore::gather_growths(const Batch& batch, const BatchUpdate& update) {
  ++num_batches_;
  num_growths_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    for (const Link& link : batch[i]->links) {
      Shared& shared = *link.shared;
      if (!link.has_sequence || shared.index == nullptr) continue;
      if (shared.batch != num_batches_) {
        shared.batch = num_batches_;
        shared.task = num_growths_++;
        if (growths_.size() < num_growths_) growths_.emplace_back();
        growths_[shared.task].shared = &shared;
        growths_[shared.task].num_tokens = growths_[shared.task].work = 0;
        growths_[shared.task].learners.clear();
      }
      growths_[shared.task].num_tokens += update.tokens_of(i).size();
      growths_[shared.task].learners.emplace_back(i, link.sequence);
    }
  }
}

// Without new output the outcome of the draft is still unknown.
void ForestCore::gather_lessons(const Batch& batch, const BatchUpdate& update) {
  num_lessons_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->considered.empty() || update.tokens_of(i).empty()) continue;
    Model& model = *batch[i]->model;
    if (model.batch != num_batches_) {
      model.batch = num_batches_;
      model.task = num_lessons_++;
      if (lessons_.size() < num_lessons_) lessons_.emplace_back();
      lessons_[model.task].model = &model;
      lessons_[model.task].learners.clear();
    }
    lessons_[model.task].learners.push_back(i);
    std::swap(batch[i]->considered, batch[i]->judged);
  }
}

void ForestCore::teach(const Lesson& lesson, const Batch& batch, const BatchUpdate& update) {
  for (const std::size_t i : lesson.learners) {
    learn_from(batch[i]->judged, update.tokens_of(i), lesson.model->acceptance);
    batch[i]->judged.clear();
  }
}

void ForestCore::grow(Growth& growth, const BatchUpdate& update, Lookahead& lookahead) const {
  SuffixIndex& index = *growth.shared->index;
  const bool is_tight = is_exhausted(growth.shared->group);
  if (is_tight) growth.work = index.make_holes(growth.num_tokens);
  const bool is_full = is_tight && !index.has_holes(growth.num_tokens);
  for (std::size_t begin = 0; begin < growth.learners.size(); begin += Lookahead::kWalks) {
    const auto block = std::span(growth.learners)
                           .subspan(begin, std::min(Lookahead::kWalks, growth.learners.size() - begin));
    for (const auto& [place, sequence] : block) {
      lookahead.add_append(index.automaton(), index.tail(sequence), update.tokens_of(place));
    }
    lookahead.run();
    for (const auto& [place, sequence] : block) {
      if (is_full && !update.tokens_of(place).empty()) index.stop(sequence);
      index.append(sequence, update.tokens_of(place));
    }
  }
  index.uphold(growth.num_tokens);
}

void ForestCore::append(Request& request, std::span<const std::int32_t> tokens) {
  if (request.has_to_come()) request.keep_pending(tokens);
  if (request.own_state == OwnIndex::kReady) append_to_own(request, tokens);
}

void ForestCore::append_to_own(Request& request, std::span<const std::int32_t> tokens) {
  try {
    request.own->append(tokens);
    request.own_bytes = request.own->memory_bytes();
  } catch (const std::bad_alloc&) {
    request.own.reset();
  } catch (const CapacityError&) {
    request.own.reset();
  }
}

Cursor ForestCore::tail_of_own(const Request& request) {
  return request.has_own() ? request.own->tail() : Cursor{};
}

void ForestCore::draft_from_own(const Request& request, Cursor match, const DraftOptions& options,
                                Scratch& scratch) {
  scratch.draft.tokens.clear();
  scratch.draft.source = kNoSource;
  if (options.max_tokens == 0 || !request.has_own()) return;
  if (scratch.drafter.improve(request.own->automaton(), match, options, scratch.draft.tokens)) {
    scratch.draft.source = kRequestSource;
  }
}

// All indices have the output: a request's sequence is the longest possible match.
void ForestCore::draft_from_shared(const Batch& batch, const Wanted& wanted) {
  const auto draft_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    Scratch& scratch = scratch_[thread];
    const auto block = std::span(batch).subspan(begin, end - begin);
    prefetch(block);
    follow_links(block, true, scratch.lookahead);
    for (const Request* request : block) {
      if (request->model && request->has_own()) {
        scratch.lookahead.add_draft(request->own->automaton(), request->own->tail());
      }
    }
    scratch.lookahead.run();
    for (std::size_t i = begin; i < end; ++i) {
      std::swap(drafts_[i], scratch.draft);
      improve(*batch[i], tail_of_own(*batch[i]), wanted.of(*batch[i]), scratch);
      std::swap(drafts_[i], scratch.draft);
    }
  };
  share_out(0, batch.size(), draft_block, [](std::size_t, std::size_t) {});
}

// The output is not learned yet: all indices, also the requests' own, are only read.
void ForestCore::draft_ahead(const Batch& batch, const BatchUpdate& update, const Wanted& wanted) {
  const auto draft_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    Scratch& scratch = scratch_[thread];
    const auto block = std::span(batch).subspan(begin, end - begin);
    prefetch(block);
    for (std::size_t i = begin; i < end; ++i) {
      begin_matches(*batch[i]);
      batch[i]->extend_context(update.tokens_of(i), depth_);
      if (!batch[i]->has_own()) continue;
      batch[i]->own_match.look_ahead(batch[i]->own->automaton(), batch[i]->context,
                                     update.tokens_of(i).size(), scratch.lookahead);
    }
    follow_links(block, false, scratch.lookahead);
    for (std::size_t i = begin; i < end; ++i) {
      if (!batch[i]->has_own()) continue;
      const Automaton& own = batch[i]->own->automaton();
      scratch.lookahead.add_draft(
          own, batch[i]->own_match.follow(own, batch[i]->context, update.tokens_of(i).size(), {}));
    }
    scratch.lookahead.run();
    for (std::size_t i = begin; i < end; ++i) {
      const DraftOptions options = wanted.of(*batch[i]);
      const Cursor own = batch[i]->own_match.longest();
      std::swap(drafts_[i], scratch.draft);
      if (!batch[i]->model) draft_from_own(*batch[i], own, options, scratch);
      improve(*batch[i], own, options, scratch);
      std::swap(drafts_[i], scratch.draft);
    }
  };
  share_out(0, batch.size(), draft_block, [](std::size_t, std::size_t) {});
}

// Matches the requests' contexts in the shared indices.
void ForestCore::follow_links(std::span<Request* const> block, bool is_learned, Lookahead& lookahead) {
  for_each_link(block, [&](const Request& request, Link& link, const SuffixIndex& index) {
    const Automaton& automaton = index.automaton();
    if (is_learned && link.has_sequence) return automaton.prefetch(index.tail(link.sequence).state);
    const std::size_t num_new = request.num_output - link.num_matched;
    link.match.look_ahead(automaton, request.context, num_new, lookahead);
  });
  lookahead.run();
  for_each_link(block, [&](const Request& request, Link& link, const SuffixIndex& index) {
    const std::size_t num_new = request.num_output - link.num_matched;
    const bool is_known = link.has_sequence && (is_learned || num_new == 0);
    const Cursor known = is_known ? index.tail(link.sequence) : Cursor{};
    link.num_matched = request.num_output;
    lookahead.add_draft(index.automaton(),
                        link.match.follow(index.automaton(), request.context, num_new, known));
  });
}

// Continues from the request's own sequence in the indices, as far as they have learned it.
void ForestCore::begin_matches(Request& request) {
  if (request.has_own() && !request.own_match.is_begun(request.own->automaton())) {
    request.own_match.begin_at(request.own->automaton(), request.own->tail(), true);
  }
  for (Link& link : request.links) {
    if (!link.has_sequence || link.shared->index == nullptr) continue;
    const SuffixIndex& index = *link.shared->index;
    if (link.match.is_begun(index.automaton()) || !index.is_learned(link.sequence)) continue;
    link.match.begin_at(index.automaton(), index.tail(link.sequence), false);
    if (link.match.is_begun(index.automaton())) link.num_matched = request.num_output;
  }
}

void ForestCore::improve(Request& request, Cursor own, const DraftOptions& options, Scratch& scratch) {
  request.model ? draft_learned(request, own, options, scratch) : draft_from_links(request, options, scratch);
}

// Improves on the draft from the request's own index; ties stay with the more specific source.
void ForestCore::draft_from_links(Request& request, const DraftOptions& options, Scratch& scratch) {
  if (options.max_tokens == 0) return;
  for (Link& link : request.links) {
    if (link.shared->index == nullptr) continue;
    const Automaton& automaton = link.shared->index->automaton();
    if (scratch.drafter.improve(automaton, link.match.longest(), options, scratch.draft.tokens)) {
      scratch.draft.source = link.source;
    }
  }
}

// Of several trees of one kind, the one with the longest match counts.
void ForestCore::draft_learned(Request& request, Cursor own, const DraftOptions& options, Scratch& scratch) {
  Witnesses witnesses;
  if (request.has_own()) witnesses[kRequestSource - 1] = {&request.own->automaton(), own};
  for (Link& link : request.links) {
    if (link.shared->index == nullptr) continue;
    const Cursor match = link.match.longest();
    Witness& witness = witnesses[link.source - 1];
    if (match.length > witness.match.length) witness = {&link.shared->index->automaton(), match};
  }
  const std::size_t tree = scratch.learned.draft(witnesses, request.context, request.model->acceptance,
                                                 options, scratch.draft.tokens, request.considered);
  scratch.draft.source = tree == Evidence::kNumTrees ? kNoSource : static_cast<SourceId>(tree + 1);
}

DraftOptions ForestCore::Wanted::of(const Request& request) const {
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  options.min_prob = std::max(options.min_prob, min_prob);
  return options;
}

void BatchDrafts::reserve(std::size_t num_drafts, std::size_t num_tokens) {
  token_ids.reserve(num_tokens);
  parents.reserve(num_tokens);
  probs.reserve(num_tokens);
  offsets.reserve(num_drafts + 1);
  scores.reserve(num_drafts);
  match_lengths.reserve(num_drafts);
  sources.reserve(num_drafts);
}

void BatchDrafts::push_back(const SourcedDraft& draft) {
  const DraftTokens& tokens = draft.tokens;
  token_ids.insert(token_ids.end(), tokens.token_ids.begin(), tokens.token_ids.end());
  parents.insert(parents.end(), tokens.parents.begin(), tokens.parents.end());
  probs.insert(probs.end(), tokens.probs.begin(), tokens.probs.end());
  offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
  scores.push_back(tokens.score);
  match_lengths.push_back(static_cast<std::int32_t>(tokens.match_length));
  sources.push_back(draft.source);
}

}  // namespace agentspec
