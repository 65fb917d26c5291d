// All live requests and shared indices of one process, by integer ids: the batch layer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/forest/budget.hpp"
#include "core/forest/request.hpp"
#include "core/index/lookahead.hpp"
#include "core/threads/background_thread.hpp"
#include "core/threads/fair_mutex.hpp"
#include "core/threads/worker_pool.hpp"

namespace agentspec {

using RequestId = std::uint64_t;

/// A shared index that a request drafts from, and learns into if the request learns.
struct SharedSource {
  IndexId index;
  SourceId source;
};

/// New output tokens of several requests: those of requests[i] are tokens[offsets[i] .. offsets[i + 1]).
struct BatchUpdate {
  std::span<const RequestId> requests;
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t> offsets;

  std::span<const std::int32_t> tokens_of(std::size_t i) const {
    return tokens.subspan(static_cast<std::size_t>(offsets[i]),
                          static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
};

struct SourcedDraft {
  DraftTokens tokens;
  SourceId source = kNoSource;
};

/// Drafts end to end: draft i is [offsets[i], offsets[i + 1]) of the token arrays.
struct BatchDrafts {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<float> probs;
  std::vector<std::int64_t> offsets{0};
  std::vector<double> scores;
  std::vector<std::int32_t> match_lengths;
  std::vector<SourceId> sources;

  std::size_t size() const { return scores.size(); }
  void reserve(std::size_t num_drafts, std::size_t num_tokens);
  void push_back(const SourcedDraft& draft);
};

/// Thread-safe. One lock guards everything except requests' own indices while they are built. Long work (a
/// prompt, a long output, a withdrawal) is done in pieces, so that no call waits for more than one. The
/// threads of a pool share a batch. Its drafts do not depend on their number.
///
/// Each request has its own index (the prompt, continued by the output, and separately the predicted output)
/// and a list of shared ones. Ids of indices and models are never reused. start() and learn() ignore an
/// unknown id: it was dropped meanwhile. A call that throws has changed nothing, with one exception. When
/// std::bad_alloc is thrown, learn() may have reached some of the indices, and step() may have taken the
/// output. Where possible the forest continues without: an index without memory is emptied, and a live
/// request continues without its own index. finish(), wait() and drop_index() never throw std::bad_alloc.
/// Budgets hold after every call. Near its limit a group (or the whole) makes room in its largest indices. At
/// the limit nothing more is learned. When nothing can be evicted, the largest live request continues without
/// its own index. Empty indices and names of live sequences can't be evicted and may take a group beyond its
/// limit. The whole is charged with at most the limit, so that other groups don't pay for it.
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
  /// Creates a model of acceptance. It starts as a copy of the prior, if there is one. O(its size). Throws
  /// UnknownIdError.
  ModelId create_model(GroupId group, std::optional<ModelId> prior = std::nullopt);
  /// Creates a model from model_state()'s result. O(its size). Throws UnknownIdError, ConfigError.
  ModelId restore_model(GroupId group, std::span<const std::byte> state);
  /// Returns a copy of the model's state. O(its size). Throws UnknownIdError.
  std::vector<std::byte> model_state(ModelId id);
  /// Live requests keep it until they are finished. Throws UnknownIdError.
  void drop_model(ModelId id);
  /// Adds a finished sequence, which counts as `uses` equal ones, to each of the indices, in pieces.
  /// O(indices * tokens * chain). Throws TokenError, ConfigError.
  void learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens, std::uint32_t uses = 1);
  /// Returns the next unread outputs of an index, the oldest first, about kReadTokens at a time; none at the
  /// end. `is_begin` starts over and abandons any earlier reading of the index. An output that stays in the
  /// index is read once, despite other calls in between. Throws UnknownIdError.
  Outputs read_outputs(IndexId id, bool is_begin);

  /// Admits a request and indexes its prompt: O(prompt * chain), off the lock. In the background, the call
  /// only copies the prompt. Until its index is ready, the request drafts only from the shared ones, and
  /// permanently so if memory runs out. With a model, LearnedDrafter drafts and the model learns. A call that
  /// throws admits nothing. Throws DuplicateIdError, UnknownIdError, TokenError, ConfigError.
  void start(RequestId id, GroupId group, std::span<const std::int32_t> prompt,
             std::span<const std::int32_t> prediction, std::span<const SharedSource> sources, bool learn,
             const DraftOptions& options, bool in_background = false,
             std::optional<ModelId> model = std::nullopt);
  /// Returns once the request's own index is ready or abandoned, or the request is finished.
  void wait(RequestId id);
  /// Takes new output of a batch, without drafting. O(tokens * sources * chain) plus evictions. More than
  /// SuffixIndex::kPieceTokens of one request are taken in pieces. If another thread finishes a request in
  /// between, the rest of its output is dropped, and a step drafts nothing for it.
  void observe(const BatchUpdate& update);
  /// Announces a batch of `num_requests` requests, so that sleeping threads wake up in time.
  void expect(std::size_t num_requests);
  /// Takes the output, then drafts for the batch: at most max_tokens per request, and no token less probable
  /// than min_prob. Without a model the draft of the highest score wins; ties stay with the more specific
  /// source. O(new tokens + match lengths * max_tokens) per request and source. With `learn_later`, the
  /// updates of shared indices and models are deferred. A thread applies them after the step, or the next
  /// call whose result depends on them does. Long output is learned immediately.
  BatchDrafts step(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob = 0,
                   bool learn_later = false);
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
  struct Growth {  // a shared index and the requests of the batch that learn into it, in batch order
    Shared* shared;
    std::size_t num_tokens;
    std::size_t work;  // that was done to make room
    std::vector<std::pair<std::size_t, SequenceId>> learners;
  };

  struct Lesson {  // a model and the requests of the batch that it learns from, in batch order
    Model* model;
    std::vector<std::size_t> learners;
  };
  struct Wanted {  // limits of drafts, in addition to each request's own options
    std::uint32_t max_tokens;
    double min_prob;

    DraftOptions of(const Request& request) const;
  };

  using Batch = std::vector<Request*>;
  static constexpr GroupId kNoGroup = ~GroupId{0};
  struct alignas(128) Scratch {  // of one thread
    Drafter drafter;
    LearnedDrafter learned;
    Lookahead lookahead;
    SourcedDraft draft;
  };

  ModelId add_model(GroupId group, const AcceptanceModel& learned);
  const std::shared_ptr<Model>& model(ModelId id) const;
  Request& request(RequestId id);
  const std::shared_ptr<Shared>& shared(IndexId id) const;
  void check_totals(std::span<const std::size_t> group_bytes) const;
  void connect(Request& request, std::span<const SharedSource> sources, bool learn);
  SequenceId open_sequence(Shared& shared, std::uint32_t uses = 1);
  void close_sequences(const Request& request);
  void build_queued(const std::shared_ptr<Request>& request);
  bool begin_building(Request& request);
  void build(Request& request, std::span<const std::int32_t> prediction,
             std::span<const std::int32_t> prompt);
  bool append_pieces(Request& request, std::span<const std::int32_t> tokens);
  void end_building(Request& request);
  void give_up(Request& request);
  void mute(Request& request) noexcept;
  bool learn_piece(IndexId id, std::optional<SequenceId>& sequence, std::span<const std::int32_t> tokens,
                   std::uint32_t uses, bool is_last);
  bool withdraw_piece(const Link& link);

  std::unique_lock<FairMutex> enter();
  void learn_left();
  void learn_beside() noexcept;
  void leave(const Batch& batch, const BatchUpdate& update);
  Batch resolve(const BatchUpdate& update);
  std::vector<std::shared_ptr<Request>> keep(const BatchUpdate& update) const;
  void take_in_pieces(const Batch& batch, const BatchUpdate& update, const std::optional<Wanted>& wanted,
                      std::unique_lock<FairMutex>& lock);
  void take_part(const Batch& batch, const BatchUpdate& update, std::size_t begin, std::size_t end,
                 const std::optional<Wanted>& wanted);
  /// wanted: drafts from the requests' own indices.
  void take(const Batch& batch, const BatchUpdate& update, const std::optional<Wanted>& wanted);
  void append_block(const Batch& batch, const BatchUpdate& update, std::size_t begin, std::size_t end,
                    Scratch& scratch);
  void account_taken(const Batch& batch, const BatchUpdate& update);
  void account_growths();
  void study(std::size_t i, const Batch& batch, const BatchUpdate& update, Scratch& scratch);
  void gather_growths(const Batch& batch, const BatchUpdate& update);
  void gather_lessons(const Batch& batch, const BatchUpdate& update);
  static void teach(const Lesson& lesson, const Batch& batch, const BatchUpdate& update);
  void grow(Growth& growth, const BatchUpdate& update, Lookahead& lookahead) const;
  static void append_to_own(Request& request, std::span<const std::int32_t> tokens);
  static void append(Request& request, std::span<const std::int32_t> tokens);
  void draft_from_shared(const Batch& batch, const Wanted& wanted);
  void draft_ahead(const Batch& batch, const BatchUpdate& update, const Wanted& wanted);
  static void begin_matches(Request& request);
  static void follow_links(std::span<Request* const> block, bool is_learned, Lookahead& lookahead);
  static Cursor tail_of_own(const Request& request);
  static void draft_from_own(const Request& request, Cursor match, const DraftOptions& options,
                             Scratch& scratch);
  static void improve(Request& request, Cursor own, const DraftOptions& options, Scratch& scratch);
  static void draft_from_links(Request& request, const DraftOptions& options, Scratch& scratch);
  static void draft_learned(Request& request, Cursor own, const DraftOptions& options, Scratch& scratch);
  template <typename Block, typename Single>
  void share_out(std::size_t num_single, std::size_t num_requests, const Block& block, const Single& single);

  Group& touch(GroupId id) noexcept;
  void account(std::size_t& seen, std::size_t now, Group& group) noexcept;
  void account(Shared& shared, std::size_t num_added = 0) noexcept;
  void account(Request& request, std::size_t bytes, std::size_t num_added = 0) noexcept;
  void account_own(Request& request, std::size_t num_added) noexcept;
  void account_considered(Request& request) noexcept;
  void rank(Shared& shared, std::size_t spare_bytes) noexcept;
  void balance(std::size_t work_done = 0);
  std::size_t relieve(Budget& budget, GroupId begin, GroupId end, std::size_t max_work);
  void keep_within(Budget& budget, GroupId group);
  Shared* largest_of(Budget& budget);
  void make_room(Shared& shared, std::size_t limit_bytes, std::size_t num_changed, std::size_t& work_left);
  bool is_exhausted(GroupId group) const;
  bool mute_largest_request(GroupId group);

  const std::uint32_t depth_;
  const int process_;
  mutable FairMutex mutex_;  // guards everything below
  std::condition_variable_any built_;
  std::vector<Group> groups_;
  std::unordered_map<IndexId, std::shared_ptr<Shared>> indices_;
  std::unordered_map<RequestId, std::shared_ptr<Request>> requests_;
  std::unordered_map<ModelId, std::shared_ptr<Model>> models_;
  IndexId next_index_ = 0;
  ModelId next_model_ = 0;
  std::uint64_t num_batches_ = 0;
  std::size_t bytes_ = 0;       // of all groups
  Budget whole_;                // charged with each group up to its limit
  GroupId touched_ = kNoGroup;  // a list of the groups that have changed since the last balance()

  std::vector<Growth> growths_;  // of the current batch; the first num_growths_ are in use
  std::size_t num_growths_ = 0;
  std::vector<Lesson> lessons_;  // of the current batch; the first num_lessons_ are in use
  std::size_t num_lessons_ = 0;
  struct {  // a batch with deferred growths and lessons
    bool is_waiting = false;
    Batch batch;
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> offsets;
  } left_;
  WorkerPool workers_;
  std::vector<Scratch> scratch_;      // one per thread
  std::vector<SourcedDraft> drafts_;  // one per request of the batch
  // The last members: their threads use the others.
  BackgroundThread builder_;
  BackgroundThread learner_;
};

/// Does not delete a core in a process that was forked after its construction: its threads do not exist
/// there, and their work may be half done.
struct ForestCoreDeleter {
  void operator()(ForestCore* core) const {
    if (core->is_usable()) delete core;
  }
};

}  // namespace agentspec
