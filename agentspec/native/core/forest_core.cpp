#include "core/forest_core.hpp"

#include <algorithm>
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

}  // namespace

ForestCore::ForestCore(std::uint32_t depth, std::size_t limit_bytes)
    : depth_(depth), limit_bytes_(limit_bytes) {
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
  auto made = std::make_shared<Shared>(depth_, limit_bytes, group);
  account(made->bytes, made->index.memory_bytes(), group);
  indices_.emplace(next_index_, std::move(made));
  return next_index_++;
}

void ForestCore::drop_index(IndexId id) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Shared> dropped = shared(id);
  account(dropped->bytes, 0, dropped->group);
  dropped->index.clear();
  dropped->is_dropped = true;
  indices_.erase(id);
}

void ForestCore::learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens) {
  check_tokens(tokens);
  const std::lock_guard lock(mutex_);
  for (const IndexId id : indices) {
    const auto found = indices_.find(id);
    if (found == indices_.end()) continue;
    Shared& target = *found->second;
    const SequenceId sequence = target.index.open();
    target.index.append(sequence, tokens);
    target.index.close(sequence);
    account(target.bytes, target.index.memory_bytes(), target.group);
  }
  balance();
}

// ---- a request's life ---------------------------------------------------------------------------------

void ForestCore::start(RequestId id, GroupId group, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> prediction, std::span<const SharedSource> sources,
                       bool learn, const DraftOptions& options) {
  check_tokens(prompt);
  check_tokens(prediction);
  auto made = std::make_unique<Request>(depth_, group, options);
  const SequenceId predicted = made->own.open();
  made->own.append(predicted, prediction);
  made->own.close(predicted);
  made->text = made->own.open();
  made->own.append(made->text, prompt);

  const std::lock_guard lock(mutex_);
  if (requests_.contains(id)) throw DuplicateIdError(name("request", id) + " is live already");
  if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
  connect(*made, sources, learn);
  account(made->bytes, made->own.memory_bytes(), group);
  requests_.emplace(id, std::move(made));
  balance();
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
    link.sequence = link.shared->index.open();
    link.has_sequence = true;
    account(link.shared->bytes, link.shared->index.memory_bytes(), link.shared->group);
  }
}

void ForestCore::observe(const BatchUpdate& update) {
  check_tokens(update.tokens);
  const std::lock_guard lock(mutex_);
  const std::vector<Request*> batch = resolve(update);
  for (std::size_t i = 0; i < batch.size(); ++i) append(*batch[i], update.tokens_of(i));
  balance();
}

BatchDrafts ForestCore::step(const BatchUpdate& update, std::uint32_t max_tokens) {
  check_tokens(update.tokens);
  BatchDrafts drafts;
  drafts.offsets.push_back(0);
  const std::lock_guard lock(mutex_);
  const std::vector<Request*> batch = resolve(update);
  for (std::size_t i = 0; i < batch.size(); ++i) append(*batch[i], update.tokens_of(i));
  balance();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    draft(*batch[i], update.tokens_of(i), max_tokens);
    drafts.token_ids.insert(drafts.token_ids.end(), best_.token_ids.begin(), best_.token_ids.end());
    drafts.parents.insert(drafts.parents.end(), best_.parents.begin(), best_.parents.end());
    for (const double prob : best_.probs) drafts.probs.push_back(static_cast<float>(prob));
    drafts.offsets.push_back(static_cast<std::int64_t>(drafts.token_ids.size()));
    drafts.scores.push_back(best_.score);
    drafts.match_lengths.push_back(static_cast<std::int32_t>(best_.match_length));
    drafts.sources.push_back(best_source_);
  }
  return drafts;
}

void ForestCore::finish(RequestId id, bool keep) {
  std::unique_ptr<Request> finished;  // freed after the lock
  const std::lock_guard lock(mutex_);
  request(id);
  finished = std::move(requests_.extract(id).mapped());
  account(finished->bytes, 0, finished->group);
  for (Link& link : finished->links) {
    if (!link.has_sequence || link.shared->is_dropped) continue;
    if (keep) {
      link.shared->index.close(link.sequence);
    } else {
      link.shared->index.remove(link.sequence);
    }
    account(link.shared->bytes, link.shared->index.memory_bytes(), link.shared->group);
  }
  balance();
}

// Checks a whole batch before anything is changed.
std::vector<ForestCore::Request*> ForestCore::resolve(const BatchUpdate& update) {
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

void ForestCore::append(Request& request, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  request.num_output += tokens.size();
  request.own.append(request.text, tokens);
  account(request.bytes, request.own.memory_bytes(), request.group);
  for (Link& link : request.links) {
    if (!link.has_sequence || link.shared->is_dropped) continue;
    link.shared->index.append(link.sequence, tokens);
    account(link.shared->bytes, link.shared->index.memory_bytes(), link.shared->group);
  }
}

// ---- drafting -----------------------------------------------------------------------------------------

void ForestCore::draft(Request& request, std::span<const std::int32_t> new_tokens, std::uint32_t max_tokens) {
  best_.clear();
  best_source_ = kNoSource;
  DraftOptions options = request.options;
  options.max_tokens = std::min(options.max_tokens, max_tokens);
  if (options.max_tokens == 0) return;
  // the context is the tail of what the request's own index holds
  if (drafter_.improve(request.own.automaton(), request.own.tail(request.text), options, best_)) {
    best_source_ = kRequestSource;
  }
  for (Link& link : request.links) {
    if (link.shared->is_dropped) continue;
    if (drafter_.improve(link.shared->index.automaton(), find_match(request, link, new_tokens), options,
                         best_)) {
      best_source_ = link.source;
    }
  }
}

// The longest suffix of prompt + output that occurs in the index. A cursor alone would miss longer matches
// that others have appended since it was set: it is only carried on while nobody writes. Where the request's
// own output is in the index, its tail is the longest match as soon as it is as long as a context can be.
Cursor ForestCore::find_match(const Request& request, Link& link,
                              std::span<const std::int32_t> new_tokens) const {
  const SuffixIndex& index = link.shared->index;
  if (link.has_sequence && request.num_output >= depth_ - 1 && index.is_learned(link.sequence)) {
    return index.tail(link.sequence);
  }
  const bool is_current = link.version == index.version() && link.num_matched != kNever &&
                          link.num_matched + new_tokens.size() == request.num_output;
  if (is_current) {
    for (const std::int32_t token : new_tokens) link.match = index.automaton().advance(link.match, token);
  } else {
    link.match = index.match(request.own.text(request.text));
  }
  link.version = index.version();
  link.num_matched = request.num_output;
  return link.match;
}

// ---- budgets ------------------------------------------------------------------------------------------

void ForestCore::account(std::size_t& seen, std::size_t now, GroupId group) {
  groups_[group].bytes += now - seen;  // wraps around and back where an index has shrunk
  bytes_ += now - seen;
  seen = now;
}

void ForestCore::balance() {
  for (const Group& group : groups_) {
    while (group.bytes > group.limit_bytes && shrink_largest(&group, group.bytes - group.limit_bytes)) {
    }
  }
  while (bytes_ > limit_bytes_ && shrink_largest(nullptr, bytes_ - limit_bytes_)) {
  }
}

// Takes `excess` bytes and a sixteenth more, so that this is not needed at every call, from the largest
// shared index of a group (nullptr: of all). False if that has nothing to give.
bool ForestCore::shrink_largest(const Group* group, std::size_t excess) {
  Shared* largest = nullptr;
  IndexId largest_id = 0;
  for (const auto& [id, candidate] : indices_) {
    if (group != nullptr && &groups_[candidate->group] != group) continue;
    const bool is_larger = largest == nullptr || candidate->bytes > largest->bytes ||
                           (candidate->bytes == largest->bytes && id < largest_id);
    if (!is_larger) continue;
    largest = candidate.get();
    largest_id = id;
  }
  if (largest == nullptr) return false;
  const std::size_t before = largest->bytes;
  excess += before / 16;
  largest->index.enforce(before > excess ? before - excess : 0);
  account(largest->bytes, largest->index.memory_bytes(), largest->group);
  return largest->bytes < before;
}

// ---- figures ------------------------------------------------------------------------------------------

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
  const SuffixIndex& index = shared(id)->index;
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
    held->index.check_integrity();
    if (held->bytes != held->index.memory_bytes()) throw IntegrityError("an index is miscounted");
    bytes += held->bytes;
  }
  for (const auto& [id, live] : requests_) {
    live->own.check_integrity();
    if (live->bytes != live->own.memory_bytes()) throw IntegrityError("a request is miscounted");
    bytes += live->bytes;
  }
  if (bytes != bytes_) throw IntegrityError("the total is miscounted");
}

ForestCore::Request& ForestCore::request(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw UnknownIdError("there is no live " + name("request", id));
  return *found->second;
}

const std::shared_ptr<ForestCore::Shared>& ForestCore::shared(IndexId id) const {
  const auto found = indices_.find(id);
  if (found == indices_.end()) throw UnknownIdError("there is no " + name("index", id));
  return found->second;
}

}  // namespace agentspec
