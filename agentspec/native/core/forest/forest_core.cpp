#include "core/forest/forest_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <string>

#include "core/error.hpp"
#include "core/tokens.hpp"

namespace agentspec {
namespace {

std::string name(const char* what, std::uint64_t id) { return std::string(what) + " " + std::to_string(id); }

}  // namespace

ForestCore::ForestCore(std::uint32_t depth, std::size_t limit_bytes, std::size_t num_threads)
    : depth_(depth),
      process_(getpid()),
      whole_{limit_bytes, LargestFirst<Shared>(Shared::kOfAll)},
      workers_(num_threads),
      scratch_(num_threads) {
  Automaton{depth};  // throws ConfigError now and not at the first request
}

bool ForestCore::is_usable() const { return process_ == getpid(); }

// ---- shared indices -----------------------------------------------------------------------------------

GroupId ForestCore::create_group(std::size_t limit_bytes) {
  const auto lock = enter();
  groups_.emplace_back(limit_bytes);
  return static_cast<GroupId>(groups_.size() - 1);
}

IndexId ForestCore::create_index(GroupId group, std::size_t limit_bytes, std::uint32_t weight) {
  const auto lock = enter();
  if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
  auto made = std::make_shared<Shared>();
  made->index = std::make_unique<SuffixIndex>(depth_, limit_bytes);
  made->group = group;
  made->id = next_index_;
  made->weight = weight;
  groups_[group].indices.make_place();
  whole_.indices.make_place();
  Shared& index = *indices_.emplace(next_index_, std::move(made)).first->second;
  groups_[group].indices.add(index);
  whole_.indices.add(index);
  account(index);
  balance();
  return next_index_++;
}

void ForestCore::drop_index(IndexId id) {
  std::unique_ptr<SuffixIndex> dropped;  // freed after the lock
  const auto lock = enter();
  const std::shared_ptr<Shared> held = shared(id);
  account(held->bytes, 0, groups_[held->group]);
  groups_[held->group].indices.remove(*held);
  whole_.indices.remove(*held);
  dropped = std::move(held->index);
  indices_.erase(id);
}

ModelId ForestCore::create_model(GroupId group, std::optional<ModelId> prior) {
  const auto lock = enter();
  const auto found = prior ? models_.find(*prior) : models_.end();
  return add_model(group, found == models_.end() ? AcceptanceModel{} : found->second->acceptance);
}

ModelId ForestCore::restore_model(GroupId group, std::span<const std::byte> state) {
  const AcceptanceModel learned(state);
  const auto lock = enter();
  return add_model(group, learned);
}

ModelId ForestCore::add_model(GroupId group, const AcceptanceModel& learned) {
  if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
  models_.emplace(next_model_, std::make_shared<Model>(group, learned));
  std::size_t held = 0;
  account(held, sizeof(Model), touch(group));
  balance();
  return next_model_++;
}

std::vector<std::byte> ForestCore::model_state(ModelId id) {
  std::vector<std::byte> state(sizeof(AcceptanceModel));
  const auto lock = enter();
  std::ranges::copy(model(id)->acceptance.state(), state.begin());
  return state;
}

void ForestCore::drop_model(ModelId id) {
  const auto lock = enter();
  std::size_t held = sizeof(Model);
  account(held, 0, groups_[model(id)->group]);
  models_.erase(id);
}

Outputs ForestCore::read_outputs(IndexId id, bool is_begin) {
  Outputs outputs;
  outputs.tokens.reserve(2 * SuffixIndex::kReadTokens);  // before the lock is held
  const auto lock = enter();
  SuffixIndex& index = *shared(id)->index;
  if (is_begin) index.begin_reading();
  index.read(outputs);
  return outputs;
}

void ForestCore::learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens,
                       std::uint32_t uses) {
  check_tokens(tokens);
  SuffixIndex::check_uses(uses);
  for (const IndexId id : indices) {
    std::optional<SequenceId> sequence;
    for (std::size_t begin = 0; begin < tokens.size(); begin += SuffixIndex::kPieceTokens) {
      const std::size_t size = std::min(SuffixIndex::kPieceTokens, tokens.size() - begin);
      const bool is_last = begin + size == tokens.size();
      if (!learn_piece(id, sequence, tokens.subspan(begin, size), uses, is_last)) break;
    }
  }
}

bool ForestCore::learn_piece(IndexId id, std::optional<SequenceId>& sequence,
                             std::span<const std::int32_t> tokens, std::uint32_t uses, bool is_last) {
  const auto lock = enter();
  const auto found = indices_.find(id);
  if (found == indices_.end()) return false;
  SuffixIndex& index = *found->second->index;
  if (!sequence) sequence = open_sequence(*found->second, uses);
  const bool is_tight = is_exhausted(found->second->group);
  const std::size_t work = is_tight ? index.make_holes(tokens.size()) : 0;
  const bool is_full = is_tight && !index.has_holes(tokens.size());
  if (!is_full) index.append(*sequence, tokens);
  if (is_last || is_full) index.close(*sequence);
  index.uphold(tokens.size());
  account(*found->second, is_full ? 0 : tokens.size());
  balance(work);
  return !is_full;
}

// ---- a request's life ---------------------------------------------------------------------------------

void ForestCore::start(RequestId id, GroupId group, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> prediction, std::span<const SharedSource> sources,
                       bool learn, const DraftOptions& options, bool in_background,
                       std::optional<ModelId> model) {
  check_tokens(prompt);
  check_tokens(prediction);
  for (const SharedSource& shared : sources) {
    if (shared.source == kNoSource || shared.source > kLastSource)
      throw ConfigError("a source is between 1 and 5, not " + std::to_string(shared.source));
  }
  const auto made = std::make_shared<Request>(depth_, group, options);
  const auto recent = prompt.last(std::min<std::size_t>(prompt.size(), depth_));
  made->context.assign(recent.begin(), recent.end());
  if (in_background) made->queue(prediction, prompt);
  {
    const auto lock = enter();
    if (requests_.contains(id)) throw DuplicateIdError(name("request", id) + " is live already");
    if (group >= groups_.size()) throw UnknownIdError("there is no " + name("group", group));
    const auto found_model = model ? models_.find(*model) : models_.end();
    if (found_model != models_.end()) made->model = found_model->second;
    const auto place = requests_.emplace(id, made).first;
    try {
      connect(*made, sources, learn);
    } catch (...) {
      close_sequences(*made);
      requests_.erase(place);
      throw;
    }
    account(*made, made->text.memory_bytes(), 1);
    balance();
  }
  if (!in_background) return build(*made, prediction, prompt);
  try {
    builder_.submit([this, waiting = std::weak_ptr(made)] { build_queued(waiting.lock()); });
  } catch (const std::bad_alloc&) {
    give_up(*made);
    end_building(*made);
  }
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
    link.sequence = open_sequence(*link.shared);
    link.has_sequence = true;
    link.shared->index->uphold(1);
    account(*link.shared);
  }
}

SequenceId ForestCore::open_sequence(Shared& shared, std::uint32_t uses) {
  try {
    return shared.index->open(uses);
  } catch (...) {
    account(shared);  // its arrays may have grown nevertheless
    throw;
  }
}

// Removes the request. Its learned output stays in the shared indices.
void ForestCore::close_sequences(const Request& request) {
  for (const Link& link : request.links) {
    if (!link.has_sequence || link.shared->index == nullptr) continue;
    link.shared->index->close(link.sequence);
    link.shared->index->uphold(SuffixIndex::kPieceTokens);
    account(*link.shared);
  }
}

// Returns nullptr if the request is finished.
void ForestCore::build_queued(const std::shared_ptr<Request>& request) {
  if (request == nullptr) return;
  if (!begin_building(*request)) return end_building(*request);
  const std::span<const std::int32_t> text = request->text.span();
  build(*request, text.first(request->num_predicted), text.subspan(request->num_predicted));
}

// Returns false if the index is not needed any more.
bool ForestCore::begin_building(Request& request) {
  const std::lock_guard lock(mutex_);
  if (request.own_state != OwnIndex::kQueued) return false;
  request.own_state = OwnIndex::kBuilding;
  return true;
}

// After any failure the request continues without its own index.
void ForestCore::build(Request& request, std::span<const std::int32_t> prediction,
                       std::span<const std::int32_t> prompt) {
  try {
    if (append_pieces(request, prediction)) {
      request.own->begin_sequence();
      append_pieces(request, prompt);
    }
  } catch (...) {
    give_up(request);
  }
  end_building(request);
}

// Returns false if the index is not needed any more.
bool ForestCore::append_pieces(Request& request, std::span<const std::int32_t> tokens) {
  constexpr std::size_t kPieceTokens = 1024;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(kPieceTokens, tokens.size()));
    request.own->append(piece);
    tokens = tokens.subspan(piece.size());
    const std::lock_guard lock(mutex_);
    if (request.is_finished || request.own_state == OwnIndex::kMuted) return false;
    account(request, request.own->memory_bytes() + request.text.memory_bytes(), piece.size());
    balance();
  }
  return true;
}

void ForestCore::give_up(Request& request) {
  const std::lock_guard lock(mutex_);
  if (!request.is_finished) mute(request);
}

void ForestCore::end_building(Request& request) {
  std::unique_ptr<RequestIndex> unwanted;  // these are freed after the lock
  PodArray<std::int32_t> text;
  const std::lock_guard lock(mutex_);
  text = std::move(request.text);
  const std::vector<std::int32_t> pending = std::move(request.pending);
  if (request.is_finished || request.own_state == OwnIndex::kMuted) {
    unwanted = std::move(request.own);
    if (!request.is_finished) mute(request);
  } else {
    request.own_state = OwnIndex::kReady;
    append_to_own(request, pending);
    account_own(request, pending.size());
    balance();
  }
  built_.notify_all();
}

void ForestCore::wait(RequestId id) {
  std::unique_lock lock(mutex_);
  request(id);
  const std::shared_ptr<Request> waited = requests_.at(id);
  built_.wait(lock, [&] { return waited->is_finished || !waited->has_to_come(); });
}

void ForestCore::finish(RequestId id, bool keep) {
  std::shared_ptr<Request> finished;  // these are freed after the lock
  std::unique_ptr<RequestIndex> own;
  PodArray<std::int32_t> text;
  std::vector<Link> links;
  {
    const auto lock = enter();
    request(id);
    finished = std::move(requests_.extract(id).mapped());
    account(*finished, 0, 1);
    account(finished->considered_bytes, 0, groups_[finished->group]);
    if (keep) close_sequences(*finished);
    finished->is_finished = true;  // a concurrent step in pieces then skips it
    if (finished->is_at_rest()) {
      own = std::move(finished->own);
      text = std::move(finished->text);
      finished->own_state = OwnIndex::kMuted;
    }
    links = std::move(finished->links);
    balance();
    built_.notify_all();
  }
  if (keep) return;
  for (const Link& link : links) {
    while (link.has_sequence && withdraw_piece(link)) {
    }
  }
}

// Returns false once the index holds nothing more of the output.
bool ForestCore::withdraw_piece(const Link& link) {
  const auto lock = enter();
  if (link.shared->index == nullptr) return false;
  SuffixIndex& index = *link.shared->index;
  const bool is_gone = index.remove_piece(link.sequence);
  index.uphold(SuffixIndex::kPieceTokens);
  account(*link.shared);
  return !is_gone;
}

// Removes the index, or its text. While it is being built, its builder does that.
void ForestCore::mute(Request& request) noexcept {
  if (request.is_at_rest()) {
    request.own.reset();
    request.text.release();
  }
  account(request, 0);
  request.own_state = OwnIndex::kMuted;
  built_.notify_all();
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
  const SuffixIndex& index = *shared(id)->index;
  return {index.num_sequences(), index.num_tokens()};
}

std::size_t ForestCore::num_requests() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

void ForestCore::check_integrity() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> bytes(groups_.size());
  for (const auto& [id, held] : indices_) {
    held->index->check_integrity();
    if (held->bytes != held->index->memory_bytes()) throw IntegrityError("an index is miscounted");
    bytes[held->group] += held->bytes;
  }
  for (const auto& [id, live] : requests_) {
    if (live->own_state == OwnIndex::kReady) {
      live->own->automaton().check_structure();
      if (live->bytes != live->own->memory_bytes()) throw IntegrityError("a request is miscounted");
    }
    bytes[live->group] += live->bytes + live->considered_bytes;
  }
  for (const auto& [id, model] : models_) bytes[model->group] += sizeof(Model);
  check_totals(bytes);
}

void ForestCore::check_totals(std::span<const std::size_t> group_bytes) const {
  std::size_t bytes = 0;
  std::size_t charges = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].bytes != group_bytes[i]) throw IntegrityError("a group is miscounted");
    bytes += groups_[i].bytes;
    charges += groups_[i].charge();
  }
  if (bytes != bytes_ || charges != whole_.bytes) throw IntegrityError("the total is miscounted");
}

const std::shared_ptr<Model>& ForestCore::model(ModelId id) const {
  const auto found = models_.find(id);
  if (found == models_.end()) throw UnknownIdError("there is no " + name("model", id));
  return found->second;
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
