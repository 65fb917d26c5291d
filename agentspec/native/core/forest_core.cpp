#include "core/forest_core.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>

#include "core/error.hpp"

namespace agentspec {
namespace {

void check_tokens(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0) throw TokenError("a token id is never negative, but one is " + std::to_string(token));
  }
}

std::string name(const char* what, std::uint64_t id) { return std::string(what) + " " + std::to_string(id); }

/// Brings requests into the caches, level by level.
void prefetch(std::span<Request* const> block) {
  for (const Request* request : block) {
    for (std::size_t i = 0; i < sizeof(Request); i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(request) + i);
    }
  }
  for (const Request* request : block) {
    if (request->own_state == OwnIndex::kReady) request->own->prefetch();
    __builtin_prefetch(request->links.data());
    __builtin_prefetch(request->context.data() + request->context.size());
  }
}

/// From here on a budget is kept by small steps, so that it is never reached.
std::size_t soft_limit(std::size_t limit_bytes) { return limit_bytes - limit_bytes / 16; }
/// From here on nothing is learned until there is room again.
std::size_t last_limit(std::size_t limit_bytes) { return limit_bytes - limit_bytes / 32; }

}  // namespace

ForestCore::ForestCore(std::uint32_t depth, std::size_t limit_bytes, std::size_t num_threads)
    : depth_(depth), limit_bytes_(limit_bytes), scratch_(num_threads), workers_(num_threads) {
  if (num_threads < 1 || num_threads > 64)
    throw ConfigError("threads must be between 1 and 64, not " + std::to_string(num_threads));
  Automaton{depth};  // throws ConfigError now and not at the first request
}

// ---- shared indices -----------------------------------------------------------------------------------

GroupId ForestCore::create_group(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({limit_bytes});
  return static_cast<GroupId>(groups_.size() - 1);
}

IndexId ForestCore::create_index(GroupId group, std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
  auto made = std::make_shared<Shared>();
  made->index = std::make_unique<SuffixIndex>(depth_, limit_bytes);
  made->group = group;
  Shared& index = *indices_.emplace(next_index_, std::move(made)).first->second;
  account(index);
  return next_index_++;
}

void ForestCore::drop_index(IndexId id) {
  std::unique_ptr<SuffixIndex> dropped;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Shared> held = shared(id);
  account(held->bytes, 0, held->group);
  dropped = std::move(held->index);
  indices_.erase(id);
}

void ForestCore::learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens) {
  check_tokens(tokens);
  for (const IndexId id : indices) {
    SequenceId sequence = 0;
    for (std::size_t begin = 0; begin < tokens.size(); begin += SuffixIndex::kPieceTokens) {
      const std::size_t size = std::min(SuffixIndex::kPieceTokens, tokens.size() - begin);
      const bool is_last = begin + size == tokens.size();
      if (!learn_piece(id, sequence, tokens.subspan(begin, size), begin == 0, is_last)) break;
    }
  }
}

bool ForestCore::learn_piece(IndexId id, SequenceId& sequence, std::span<const std::int32_t> tokens,
                             bool is_first, bool is_last) {
  const std::lock_guard lock(mutex_);
  const auto found = indices_.find(id);
  if (found == indices_.end()) return false;
  SuffixIndex& index = *found->second->index;
  if (is_first) sequence = index.open();
  const bool is_full = is_exhausted(found->second->group);
  if (!is_full) index.append(sequence, tokens);
  if (is_last || is_full) index.close(sequence);
  index.uphold(tokens.size());
  found->second->num_added = tokens.size();
  account(*found->second);
  balance(tokens.size());
  return !is_full;
}

// ---- a request's life ---------------------------------------------------------------------------------

void ForestCore::start(RequestId id, GroupId group, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> prediction, std::span<const SharedSource> sources,
                       bool learn, const DraftOptions& options, bool in_background) {
  check_tokens(prompt);
  check_tokens(prediction);
  const auto made = std::make_shared<Request>(depth_, group, options);
  const auto recent = prompt.last(std::min<std::size_t>(prompt.size(), depth_));
  made->context.assign(recent.begin(), recent.end());
  {
    const std::lock_guard lock(mutex_);
    if (requests_.contains(id)) throw DuplicateIdError(name("request", id) + " is live already");
    if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
    connect(*made, sources, learn);
    requests_.emplace(id, made);
  }
  if (!in_background) return build(*made, prediction, prompt);
  builder_.submit([this, made, kept_prompt = std::vector<std::int32_t>(prompt.begin(), prompt.end()),
                   kept_prediction = std::vector<std::int32_t>(prediction.begin(), prediction.end())] {
    build(*made, kept_prediction, kept_prompt);
  });
}

void ForestCore::connect(Request& request, std::span<const SharedSource> sources, bool learn) {
  for (const SharedSource& source : sources) {
    const auto found = indices_.find(source.index);
    if (found == indices_.end()) continue;
    Link link{};
    link.shared = found->second;
    link.source = source.source;
    request.links.push_back(std::move(link));
  }
  std::stable_sort(request.links.begin(), request.links.end(),
                   [](const Link& a, const Link& b) { return a.source < b.source; });
  if (!learn) return;
  for (Link& link : request.links) {
    link.sequence = link.shared->index->open();
    link.has_sequence = true;
    link.shared->index->uphold(1);
    account(*link.shared);
  }
}

void ForestCore::build(Request& request, std::span<const std::int32_t> prediction,
                       std::span<const std::int32_t> prompt) {
  try {
    if (append_pieces(request, prediction)) {
      request.own->begin_sequence();
      append_pieces(request, prompt);
    }
  } catch (const std::bad_alloc&) {
    give_up(request);
  } catch (const CapacityError&) {
    give_up(request);
  }
  end_building(request);
}

// False if the index is not wanted any more.
bool ForestCore::append_pieces(Request& request, std::span<const std::int32_t> tokens) {
  constexpr std::size_t kPieceTokens = 1024;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(kPieceTokens, tokens.size()));
    request.own->append(piece);
    tokens = tokens.subspan(piece.size());
    const std::lock_guard lock(mutex_);
    if (request.is_finished || request.own_state == OwnIndex::kMuted) return false;
    account(request.bytes, request.own->memory_bytes(), request.group);
    balance(piece.size());
  }
  return true;
}

void ForestCore::give_up(Request& request) {
  const std::lock_guard lock(mutex_);
  if (!request.is_finished) mute(request);
}

void ForestCore::end_building(Request& request) {
  std::unique_ptr<RequestIndex> unwanted;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const std::vector<std::int32_t> pending = std::move(request.pending);
  if (request.is_finished || request.own_state == OwnIndex::kMuted) {
    unwanted = std::move(request.own);
    if (!request.is_finished) mute(request);
  } else {
    request.own_state = OwnIndex::kReady;
    append_to_own(request, pending);
    account_own(request);
    balance(pending.size());
  }
  built_.notify_all();
}

void ForestCore::wait(RequestId id) {
  std::unique_lock lock(mutex_);
  request(id);
  const std::shared_ptr<Request> waited = requests_.at(id);
  built_.wait(lock, [&] { return waited->is_finished || waited->own_state != OwnIndex::kBuilding; });
}

void ForestCore::finish(RequestId id, bool keep) {
  std::shared_ptr<Request> finished;  // freed after the lock
  {
    const std::lock_guard lock(mutex_);
    request(id);
    finished = std::move(requests_.extract(id).mapped());
    finished->is_finished = true;
    account(finished->bytes, 0, finished->group);
    for (const Link& link : finished->links) {
      if (!keep || !link.has_sequence || link.shared->index == nullptr) continue;
      link.shared->index->close(link.sequence);
      link.shared->index->uphold(SuffixIndex::kPieceTokens);
      account(*link.shared);
    }
    balance(1);
    built_.notify_all();
  }
  if (keep) return;
  for (const Link& link : finished->links) {
    while (link.has_sequence && withdraw_piece(link)) {
    }
  }
}

// False once nothing of the output is left in the index.
bool ForestCore::withdraw_piece(const Link& link) {
  const std::lock_guard lock(mutex_);
  if (link.shared->index == nullptr) return false;
  SuffixIndex& index = *link.shared->index;
  const bool is_gone = index.remove_piece(link.sequence);
  index.uphold(SuffixIndex::kPieceTokens);
  account(*link.shared);
  return !is_gone;
}

// Takes a ready index away; one that is being built goes when its builder looks up.
void ForestCore::mute(Request& request) {
  if (request.own_state == OwnIndex::kReady) request.own.reset();
  account(request.bytes, 0, request.group);
  request.own_state = OwnIndex::kMuted;
}

// ---- a batch ------------------------------------------------------------------------------------------

// Calls single(i, thread) for i < num_single, and block(begin, end, thread) for all requests in blocks: their
// walks hide one another's waits, and threads don't work side by side on neighbours in memory. Small batches
// are not worth waking anybody.
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
  if (num_requests >= 2 * kSize) return workers_.run(num_tasks, task);
  for (std::size_t i = 0; i < num_tasks; ++i) task(i, 0);
}

void ForestCore::observe(const BatchUpdate& update) {
  check_tokens(update.tokens);
  const std::lock_guard lock(mutex_);
  take(resolve(update), update);
}

BatchDrafts ForestCore::step(const BatchUpdate& update, std::uint32_t max_tokens) {
  check_tokens(update.tokens);
  BatchDrafts drafts;
  const std::lock_guard lock(mutex_);
  const std::vector<Request*> batch = resolve(update);
  take(batch, update);
  if (drafts_.size() < batch.size()) drafts_.resize(batch.size());
  const auto draft_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    look_ahead(std::span(batch).subspan(begin, end - begin), scratch_[thread].lookahead);
    for (std::size_t i = begin; i < end; ++i) {
      draft(*batch[i], max_tokens, scratch_[thread]);
      std::swap(drafts_[i], scratch_[thread].draft);
    }
  };
  share_out(0, batch.size(), draft_block, [](std::size_t, std::size_t) {});
  drafts.offsets.push_back(0);
  for (std::size_t i = 0; i < batch.size(); ++i) drafts.push_back(drafts_[i]);
  return drafts;
}

// Checks a whole batch before anything is changed.
std::vector<Request*> ForestCore::resolve(const BatchUpdate& update) {
  std::vector<Request*> batch;
  batch.reserve(update.requests.size());
  ++num_batches_;
  for (const RequestId id : update.requests) {
    Request& named = request(id);
    if (named.batch == num_batches_)
      throw DuplicateIdError(name("request", id) + " occurs twice in one batch");
    named.batch = num_batches_;
    batch.push_back(&named);
  }
  return batch;
}

// Appends the new output everywhere. Each index is one task, so what it holds never depends on the threads.
void ForestCore::take(const std::vector<Request*>& batch, const BatchUpdate& update) {
  gather_growths(batch);
  const auto append_block = [&](std::size_t begin, std::size_t end, std::size_t thread) {
    Lookahead& lookahead = scratch_[thread].lookahead;
    prefetch(std::span(batch).subspan(begin, end - begin));
    for (std::size_t i = begin; i < end; ++i) {
      if (batch[i]->own_state != OwnIndex::kReady) continue;
      lookahead.add_append(batch[i]->own->automaton(), batch[i]->own->tail(), update.tokens_of(i));
    }
    lookahead.run();
    for (std::size_t i = begin; i < end; ++i) append(*batch[i], update.tokens_of(i));
  };
  share_out(num_growths_, batch.size(), append_block, [&](std::size_t i, std::size_t thread) {
    grow(growths_[i], update, scratch_[thread].lookahead);
  });
  for (std::size_t i = 0; i < num_growths_; ++i) account(*growths_[i].shared);
  for (Request* named : batch) {
    if (named->own_state == OwnIndex::kReady) account_own(*named);
  }
  balance(update.tokens.size());
}

void ForestCore::gather_growths(const std::vector<Request*>& batch) {
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
        growths_[shared.task].learners.clear();
      }
      growths_[shared.task].learners.emplace_back(i, link.sequence);
    }
  }
}

void ForestCore::grow(const Growth& growth, const BatchUpdate& update, Lookahead& lookahead) const {
  SuffixIndex& index = *growth.shared->index;
  const bool is_full = is_exhausted(growth.shared->group);
  std::size_t num_added = 0;
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
      num_added += update.tokens_of(place).size();
    }
  }
  index.uphold(num_added);
  growth.shared->num_added = num_added;
}

void ForestCore::append(Request& request, std::span<const std::int32_t> tokens) const {
  request.extend_context(tokens, depth_);
  if (request.own_state == OwnIndex::kBuilding) {
    request.pending.insert(request.pending.end(), tokens.begin(), tokens.end());
  }
  if (request.own_state == OwnIndex::kReady) append_to_own(request, tokens);
}

void ForestCore::append_to_own(Request& request, std::span<const std::int32_t> tokens) {
  try {
    request.own->append(tokens);
  } catch (const std::bad_alloc&) {
    request.own.reset();
  } catch (const CapacityError&) {
    request.own.reset();
  }
}

void ForestCore::look_ahead(std::span<Request* const> block, Lookahead& lookahead) {
  prefetch(block);
  for (const Request* request : block) {
    if (request->own_state == OwnIndex::kReady) {
      lookahead.add_draft(request->own->automaton(), request->own->tail());
    }
    for (const Link& link : request->links) {
      if (!link.has_sequence || link.shared->index == nullptr) continue;
      lookahead.add_draft(link.shared->index->automaton(), link.shared->index->tail(link.sequence));
    }
  }
  lookahead.run();
}

void ForestCore::draft(Request& request, std::uint32_t max_tokens, Scratch& scratch) {
  DraftTokens& best = scratch.draft.tokens;
  best.clear();
  scratch.draft.source = kNoSource;
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  if (options.max_tokens == 0) return;
  if (request.own_state == OwnIndex::kReady &&
      scratch.drafter.improve(request.own->automaton(), request.own->tail(), options, best)) {
    scratch.draft.source = kRequestSource;
  }
  for (Link& link : request.links) {
    if (link.shared->index == nullptr) continue;
    const SuffixIndex& index = *link.shared->index;
    const Cursor known = link.has_sequence ? index.tail(link.sequence) : Cursor{};
    const std::size_t num_new = request.num_output - link.num_matched;
    const Cursor match = link.match.follow(index.automaton(), request.context, num_new, known);
    link.num_matched = request.num_output;
    if (scratch.drafter.improve(index.automaton(), match, options, best)) scratch.draft.source = link.source;
  }
}

// ---- budgets ------------------------------------------------------------------------------------------

void ForestCore::account(std::size_t& seen, std::size_t now, GroupId group) {
  groups_[group].bytes += now - seen;  // wraps around and back where an index has shrunk
  bytes_ += now - seen;
  seen = now;
}

void ForestCore::account(Shared& shared) {
  account(shared.bytes, shared.index->memory_bytes(), shared.group);
}

// An index that memory ran out for is gone.
void ForestCore::account_own(Request& request) {
  if (request.own == nullptr) return mute(request);
  account(request.bytes, request.own->memory_bytes(), request.group);
}

bool ForestCore::is_exhausted(GroupId group) const {
  return bytes_ > last_limit(limit_bytes_) || groups_[group].bytes > last_limit(groups_[group].limit_bytes);
}

void ForestCore::balance(std::size_t num_changed) {
  std::size_t work_left = SuffixIndex::kMostWork;
  for (GroupId id = 0; id < groups_.size(); ++id) {
    relieve({&groups_[id].bytes, groups_[id].limit_bytes, id}, num_changed, work_left);
  }
  relieve({&bytes_, limit_bytes_, kEveryGroup}, num_changed, work_left);
}

// Indices that are about as large as the largest evict what they add; that smaller ones may grow, the largest
// shrinks. Only if that was not enough, nothing is spared.
void ForestCore::relieve(const Scope& scope, std::size_t num_changed, std::size_t& work_left) {
  const std::size_t soft_bytes = soft_limit(scope.limit_bytes);
  if (*scope.bytes <= soft_bytes) return;
  if (Shared* largest = largest_index(scope)) {
    for (const auto& [id, shared] : indices_) {
      if (shared->num_added == 0 || !scope.holds(shared->group)) continue;
      num_changed += shared->num_added;
      if (shared->bytes > largest->bytes / 2) make_room(*shared, shared->bytes, shared->num_added, work_left);
      shared->num_added = 0;
    }
    const std::size_t excess = *scope.bytes - std::min(*scope.bytes, soft_bytes);
    make_room(*largest, largest->bytes - std::min(largest->bytes, excess), num_changed, work_left);
  }
  while (*scope.bytes > scope.limit_bytes) {
    Shared* largest = largest_index(scope);
    const std::size_t before = *scope.bytes;
    if (largest != nullptr) {
      const std::size_t excess = before - scope.limit_bytes + largest->bytes / 16;
      largest->index->enforce(largest->bytes - std::min(largest->bytes, excess));
      account(*largest);
    }
    if (*scope.bytes >= before && !mute_largest_request(scope)) return;
  }
}

void ForestCore::make_room(Shared& shared, std::size_t limit_bytes, std::size_t num_changed,
                           std::size_t& work_left) {
  work_left -= std::min(work_left, shared.index->approach(limit_bytes, num_changed, work_left));
  account(shared);
}

Shared* ForestCore::largest_index(const Scope& scope) const {
  Shared* largest = nullptr;
  IndexId largest_id = 0;
  for (const auto& [id, candidate] : indices_) {
    if (!scope.holds(candidate->group)) continue;
    const bool is_larger = largest == nullptr || candidate->bytes > largest->bytes ||
                           (candidate->bytes == largest->bytes && id < largest_id);
    if (!is_larger) continue;
    largest = candidate.get();
    largest_id = id;
  }
  return largest;
}

bool ForestCore::mute_largest_request(const Scope& scope) {
  Request* largest = nullptr;
  RequestId largest_id = 0;
  for (const auto& [id, candidate] : requests_) {
    if (!scope.holds(candidate->group) || candidate->bytes == 0) continue;
    const bool is_larger = largest == nullptr || candidate->bytes > largest->bytes ||
                           (candidate->bytes == largest->bytes && id < largest_id);
    if (!is_larger) continue;
    largest = candidate.get();
    largest_id = id;
  }
  if (largest == nullptr) return false;
  mute(*largest);
  return true;
}

// ---- figures ------------------------------------------------------------------------------------------

void BatchDrafts::push_back(const SourcedDraft& draft) {
  const DraftTokens& tokens = draft.tokens;
  token_ids.insert(token_ids.end(), tokens.token_ids.begin(), tokens.token_ids.end());
  parents.insert(parents.end(), tokens.parents.begin(), tokens.parents.end());
  for (const double prob : tokens.probs) probs.push_back(static_cast<float>(prob));
  offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
  scores.push_back(tokens.score);
  match_lengths.push_back(static_cast<std::int32_t>(tokens.match_length));
  sources.push_back(draft.source);
}

std::size_t ForestCore::index_bytes(IndexId id) const {
  const std::lock_guard lock(mutex_);
  return shared(id)->bytes;
}

std::size_t ForestCore::group_bytes(GroupId id) const {
  const std::lock_guard lock(mutex_);
  if (id >= groups_.size()) throw UnknownIdError("there is no " + name("group", id));
  return groups_[id].bytes;
}

std::size_t ForestCore::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::pair<std::size_t, std::size_t> ForestCore::index_size(IndexId id) const {
  const std::lock_guard lock(mutex_);
  const SuffixIndex& index = *shared(id)->index;
  return {index.num_sequences(), index.num_tokens()};
}

std::size_t ForestCore::num_requests() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

void ForestCore::check_integrity() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [id, held] : indices_) {
    held->index->check_integrity();
    if (held->bytes != held->index->memory_bytes()) throw IntegrityError("an index is miscounted");
    bytes += held->bytes;
  }
  for (const auto& [id, live] : requests_) {
    if (live->own_state == OwnIndex::kReady) {
      live->own->automaton().check_structure();
      if (live->bytes != live->own->memory_bytes()) throw IntegrityError("a request is miscounted");
    }
    bytes += live->bytes;
  }
  if (bytes != bytes_) throw IntegrityError("the total is miscounted");
}

Request& ForestCore::request(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw UnknownIdError("there is no live " + name("request", id));
  return *found->second;
}

const std::shared_ptr<Shared>& ForestCore::shared(IndexId id) const {
  const auto found = indices_.find(id);
  if (found == indices_.end()) throw UnknownIdError("there is no " + name("index", id));
  return found->second;
}

}  // namespace agentspec
