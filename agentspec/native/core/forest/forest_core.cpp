#include "core/forest/forest_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <thread>

#include "core/error.hpp"

namespace agentspec {
namespace {

/// Tokens of a step. The next call learns fewer sooner than a thread wakes up for them.
constexpr std::size_t kWorthWaking = 16;
/// Tokens of a finished sequence that an index learns under one lock: some 0.1 ms, which a step may wait.
constexpr std::size_t kLearnedTokens = 32;

}  // namespace

ForestCore::ForestCore(std::uint32_t depth, std::size_t limit_bytes, std::size_t num_threads)
    : depth_(depth),
      process_(getpid()),
      budget_(limit_bytes, own_changed_),
      registry_(depth, budget_),
      step_(depth, num_threads, budget_),
      builder_(mutex_, own_changed_, budget_) {
  Automaton{depth};  // throws ConfigError now and not at the first request
}

bool ForestCore::is_usable() const { return process_ == getpid(); }

// Acquires the lock and applies all deferred updates.
std::unique_lock<FairMutex> ForestCore::enter() {
  std::unique_lock lock(mutex_);
  if (step_.has_deferred()) step_.apply_deferred();
  return lock;
}

// ---- shared indices and models ------------------------------------------------------------------------

GroupId ForestCore::create_group(std::size_t limit_bytes) {
  const auto lock = enter();
  return budget_.create_group(limit_bytes);
}

IndexId ForestCore::create_index(GroupId group, std::size_t limit_bytes, std::uint32_t weight) {
  const auto lock = enter();
  return registry_.create_index(group, limit_bytes, weight);
}

void ForestCore::drop_index(IndexId id) {
  std::unique_ptr<SuffixIndex> dropped;  // freed after the lock
  const auto lock = enter();
  dropped = registry_.drop_index(id);
}

ModelId ForestCore::create_model(GroupId group) {
  const AcceptanceModel starting;  // before the lock: the first one makes the prior
  const auto lock = enter();
  return registry_.create_model(group, starting);
}

ModelId ForestCore::restore_model(GroupId group, std::span<const std::byte> state) {
  const AcceptanceModel learned(state);
  const auto lock = enter();
  return registry_.create_model(group, learned);
}

std::vector<std::byte> ForestCore::model_state(ModelId id) {
  const auto copied = [&] {
    const auto lock = enter();
    return registry_.model(id);
  };
  return copied().state();
}

void ForestCore::drop_model(ModelId id) {
  const auto lock = enter();
  registry_.drop_model(id);
}

Outputs ForestCore::read_outputs(IndexId id, bool is_begin) {
  Outputs outputs;
  outputs.tokens.reserve(2 * SuffixIndex::kReadTokens);  // before the lock is held
  const auto lock = enter();
  SuffixIndex& index = registry_.index(id);
  if (is_begin) index.begin_reading();
  index.read(outputs);
  return outputs;
}

void ForestCore::learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens,
                       const SequenceKind& kind, bool is_awaited) {
  check_tokens(tokens);
  SuffixIndex::check_uses(kind.uses);
  for (const IndexId id : indices) {
    std::optional<SequenceId> sequence;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kLearnedTokens) {
      const std::size_t size = std::min(kLearnedTokens, tokens.size() - begin);
      const bool is_last = begin + size == tokens.size();
      if (!is_awaited) std::this_thread::yield();  // to a step whose thread waits for this core
      const auto lock = enter();
      if (!registry_.learn_piece(id, sequence, tokens.subspan(begin, size), kind, is_last)) break;
    }
  }
}

void ForestCore::forget(std::span<const IndexId> indices, std::span<const std::int32_t> tokens) {
  check_tokens(tokens);
  if (tokens.empty()) return;
  for (const IndexId id : indices) {
    for (bool is_left = true; is_left; std::this_thread::yield()) {
      const auto lock = enter();
      is_left = registry_.forget_piece(id, tokens);
    }
  }
}

// ---- a request's life ---------------------------------------------------------------------------------

void ForestCore::start(const NewRequest& made) {
  check_tokens(made.prompt);
  check_tokens(made.prediction);
  for (const SharedSource& shared : made.sources) {
    if (shared.source == kNoSource || shared.source > kLastSource)
      throw ConfigError("a source is between 1 and 5, not " + std::to_string(shared.source));
  }
  const auto request = std::make_shared<Request>(made, depth_);
  const auto recent = made.prompt.last(std::min<std::size_t>(made.prompt.size(), depth_));
  request->context.assign(recent.begin(), recent.end());
  if (made.in_background) request->own.queue(made.prediction, made.prompt);
  {
    const auto lock = enter();
    registry_.admit(request, made);
  }
  if (!made.in_background) return builder_.build(*request, made.prediction, made.prompt);
  builder_.build_in_background(request);
}

void ForestCore::wait(RequestId id) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Request> waited = registry_.request(id);
  own_changed_.wait(lock, [&] { return waited->is_finished || !waited->own.has_to_come(); });
}

void ForestCore::finish(RequestId id, bool keep) {
  std::shared_ptr<Request> finished;
  std::vector<Link> links;
  std::size_t bytes = 0;
  {
    const auto lock = enter();
    finished = registry_.remove(id, keep);
    bytes = finished->own.retire();
    links = std::move(finished->links);  // a step in pieces no longer adds to them
    own_changed_.notify_all();
  }
  builder_.discard(std::move(finished), bytes);
  if (keep) return;
  for (const Link& link : links) {
    for (bool is_left = link.has_sequence; is_left;) {
      const auto lock = enter();
      is_left = registry_.withdraw_piece(link);
    }
  }
}

// ---- batches ------------------------------------------------------------------------------------------

void ForestCore::expect(std::size_t num_requests) { step_.expect(num_requests); }

void ForestCore::observe(const BatchUpdate& update) {
  check_tokens(update.tokens);
  std::unique_lock lock = enter();
  const RequestBatch batch = registry_.resolve(update.requests);
  const auto held = hold_if_in_pieces(update);
  step_.ingest(batch, update, lock);
}

BatchDrafts ForestCore::step(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob,
                             bool learn_later) {
  check_tokens(update.tokens);
  std::unique_lock lock = enter();
  const RequestBatch batch = registry_.resolve(update.requests);
  const auto held = hold_if_in_pieces(update);
  BatchDrafts drafts = step_.step(batch, update, {max_tokens, min_prob}, learn_later, lock);
  const bool is_worth_waking = step_.has_deferred() && update.tokens.size() >= kWorthWaking;
  lock.unlock();
  if (is_worth_waking) apply_deferred_async();
  return drafts;
}

BatchDrafts ForestCore::draft_after(const BatchUpdate& update, std::uint32_t max_tokens, double min_prob) {
  check_tokens(update.tokens);
  const auto lock = enter();
  return step_.draft_after(registry_.resolve(update.requests), update, {max_tokens, min_prob});
}

// Other threads may finish requests of a batch that is ingested in pieces.
std::vector<std::shared_ptr<Request>> ForestCore::hold_if_in_pieces(const BatchUpdate& update) const {
  if (!BatchStep::is_in_pieces(update)) return {};
  return registry_.hold(update.requests);
}

void ForestCore::start_threads() {
  const auto lock = enter();
  step_.start_threads();
  builder_.start_thread();
  updater_.start();
}

void ForestCore::apply_deferred_async() noexcept {
  try {
    updater_.submit([this] { enter(); });
  } catch (const std::bad_alloc&) {  // the next call applies them
  }
}

// ---- figures ------------------------------------------------------------------------------------------

std::size_t ForestCore::index_bytes(IndexId id) const {
  const std::lock_guard lock(mutex_);
  return registry_.shared(id).bytes;
}

std::size_t ForestCore::group_bytes(GroupId id) const {
  const std::lock_guard lock(mutex_);
  return budget_.group_bytes(id);
}

std::size_t ForestCore::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return budget_.bytes();
}

std::pair<std::size_t, std::size_t> ForestCore::index_size(IndexId id) const {
  const std::lock_guard lock(mutex_);
  const SuffixIndex& index = registry_.index(id);
  return {index.num_sequences(), index.num_tokens()};
}

std::size_t ForestCore::num_requests() const {
  const std::lock_guard lock(mutex_);
  return registry_.num_requests();
}

void ForestCore::check_integrity() const {
  const std::lock_guard lock(mutex_);
  registry_.check_integrity();
}

}  // namespace agentspec
