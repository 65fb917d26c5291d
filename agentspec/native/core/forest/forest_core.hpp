// All live requests and shared indices of one process, by integer ids: the batch layer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/forest/batch.hpp"
#include "core/forest/batch_step.hpp"
#include "core/forest/memory_budget.hpp"
#include "core/forest/own_index_builder.hpp"
#include "core/forest/tree_registry.hpp"
#include "core/threads/background_thread.hpp"
#include "core/threads/fair_mutex.hpp"

namespace agentspec {

/// Thread-safe. One lock guards everything except requests' own indices while they are built. Long work (a
/// prompt, a long output, a withdrawal) is done in pieces, so that no call waits for more than one. The
/// threads of a pool share a batch. Its drafts do not depend on their number.
///
/// Each request has its own index (the prompt, continued by the output, and separately the predicted output)
/// and a list of shared ones. Ids of indices and models are never reused. start(), learn() and forget()
/// ignore an unknown id: it was dropped meanwhile. A call that throws has changed nothing, with one
/// exception. When std::bad_alloc is thrown, learn() may have reached some of the indices, and step() may
/// have ingested the output. Where possible the forest continues without: an index without memory is emptied,
/// and a live request continues without its own index. forget(), finish(), wait() and drop_index() never
/// throw std::bad_alloc. Budgets hold after every call. Near its limit a group (or the whole) makes room in
/// its largest indices. At the limit nothing more is learned. When nothing can be evicted, the largest live
/// request continues without its own index. Empty indices and names of live sequences can't be evicted and
/// may take a group beyond its limit. The whole is charged with at most the limit, so that other groups don't
/// pay for it.
class ForestCore {
 public:
  ForestCore(std::uint32_t depth, std::size_t limit_bytes, std::size_t num_threads = 1);

  /// False in a process that was forked after construction: no call is allowed there, nor the destructor.
  bool is_usable() const;

  /// A group of indices with a common byte budget. O(1).
  GroupId create_group(std::size_t limit_bytes);
  /// Creates an empty shared index. When an index has to make room, it counts `weight` times its size: text
  /// that wider indices hold as well is evicted first. O(1). Throws UnknownIdError.
  IndexId create_index(GroupId group, std::size_t limit_bytes, std::uint32_t weight = 1);
  /// Drops an index; live requests continue without it. O(states), off the lock. Throws UnknownIdError.
  void drop_index(IndexId id);
  /// Creates a model of acceptance, which starts from the prior. O(its size). Throws UnknownIdError.
  ModelId create_model(GroupId group);
  /// Creates a model from model_state()'s result. O(its size). Throws UnknownIdError, ConfigError.
  ModelId restore_model(GroupId group, std::span<const std::byte> state);
  /// Returns a copy of the model's state. O(its size). Throws UnknownIdError.
  std::vector<std::byte> model_state(ModelId id);
  /// Live requests keep it until they are finished. Throws UnknownIdError.
  void drop_model(ModelId id);
  /// Adds a finished sequence to each of the indices, in pieces. Between them, the thread yields its core,
  /// unless a decode step waits for the result. O(indices * tokens * chain). Throws TokenError, ConfigError.
  void learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens,
             const SequenceKind& kind = {}, bool is_awaited = false);
  /// Removes the outputs of exactly these tokens from each of the indices, in pieces, and the rest of
  /// them after evictions. Live requests keep theirs. O(indices * tokens * chain). Throws TokenError.
  void forget(std::span<const IndexId> indices, std::span<const std::int32_t> tokens);
  /// Returns the next unread outputs of an index, the oldest first, about kReadTokens at a time; none at the
  /// end. `is_begin` starts over and abandons any earlier reading of the index. An output that stays in the
  /// index is read once, despite other calls in between. Throws UnknownIdError.
  Outputs read_outputs(IndexId id, bool is_begin);

  /// Admits a request and indexes its prompt: O(prompt * chain), off the lock. In the background, the call
  /// only copies the prompt. Until its index is ready, the request drafts only from the shared ones, and
  /// permanently so if memory runs out. A call that throws admits nothing. Throws DuplicateIdError,
  /// UnknownIdError, TokenError, ConfigError.
  void start(const NewRequest& made);
  /// Returns once the request's own index is ready or abandoned, or the request is finished.
  void wait(RequestId id);
  /// Ingests new output of a batch, without drafting. O(tokens * sources * chain) plus evictions. More than
  /// SuffixIndex::kPieceTokens of one request are ingested in pieces. If another thread finishes a request in
  /// between, the rest of its output is dropped, and a step drafts nothing for it.
  void observe(const BatchUpdate& update);
  /// Announces a batch of `num_requests` requests, so that sleeping threads wake up in time.
  void expect(std::size_t num_requests);
  /// Ingests the output, then drafts for the batch: at most max_tokens per request, and no token less
  /// probable than min_prob. Without a model the draft of the highest score wins; ties stay with the more
  /// specific source. O(new tokens + match lengths * max_tokens) per request and source. With `learn_later`,
  /// the updates of shared indices and models are deferred. A thread applies them after the step, or the next
  /// call that depends on them does. Long output is learned immediately.
  BatchDrafts step(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob = 0,
                   bool learn_later = false);
  /// Drafts for a batch as if the update's tokens followed the output of each request, e.g. those of
  /// another draft. Changes nothing. O(match lengths * (tokens + max_tokens)) per request and source. Throws
  /// UnknownIdError, DuplicateIdError, TokenError.
  BatchDrafts draft_after(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob = 0);
  /// Starts all threads now. They run on the calling thread's cores; otherwise on those of the thread whose
  /// call first needs them.
  void start_threads();
  /// Returns once all deferred updates are applied. Without it, figures may be a step behind.
  void settle() { enter(); }
  /// Removes a live request; its output stays in the shared indices if `keep`. O(sources); without `keep`
  /// O(output * sources * chain), in pieces. Throws UnknownIdError.
  void finish(RequestId id, bool keep);

  /// Bytes of one index, of a group (with its live requests), of everything. O(1).
  std::size_t index_bytes(IndexId id) const;
  std::size_t group_bytes(GroupId id) const;
  std::size_t memory_bytes() const;
  /// (sequences, tokens) of an index. O(1).
  std::pair<std::size_t, std::size_t> index_size(IndexId id) const;
  std::size_t num_requests() const;
  /// Checks every index. Throws IntegrityError.
  void check_integrity() const;

 private:
  std::unique_lock<FairMutex> enter();
  void apply_deferred_async() noexcept;
  std::vector<std::shared_ptr<Request>> hold_if_in_pieces(const BatchUpdate& update) const;

  const std::uint32_t depth_;
  const int process_;
  mutable FairMutex mutex_;  // guards everything below
  std::condition_variable_any own_changed_;
  MemoryBudget budget_;
  TreeRegistry registry_;
  BatchStep step_;
  // The last members: their threads use the others.
  OwnIndexBuilder builder_;
  BackgroundThread updater_;  // applies deferred updates
};

/// Does not delete a core in a process that was forked after its construction: its threads do not exist
/// there, and their work may be half done.
struct ForestCoreDeleter {
  void operator()(ForestCore* core) const {
    if (core->is_usable()) delete core;
  }
};

}  // namespace agentspec
