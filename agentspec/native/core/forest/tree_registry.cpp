#include "core/forest/tree_registry.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace agentspec {
namespace {

std::string name(const char* what, std::uint64_t id) { return std::string(what) + " " + std::to_string(id); }

}  // namespace

// ---- shared indices -----------------------------------------------------------------------------------

IndexId TreeRegistry::create_index(GroupId group, std::size_t limit_bytes, std::uint32_t weight) {
  budget_.check_group(group);
  auto made = std::make_shared<Shared>();
  made->index = std::make_unique<SuffixIndex>(depth_, limit_bytes, true);
  made->group = group;
  made->id = next_index_;
  made->weight = weight;
  budget_.make_place(*made);
  budget_.add(*indices_.emplace(next_index_, std::move(made)).first->second);
  budget_.balance();
  return next_index_++;
}

std::unique_ptr<SuffixIndex> TreeRegistry::drop_index(IndexId id) {
  const std::shared_ptr<Shared> held = held_index(id);
  budget_.remove(*held);
  indices_.erase(id);
  return std::move(held->index);
}

bool TreeRegistry::learn_piece(IndexId id, std::optional<SequenceId>& sequence,
                               std::span<const std::int32_t> tokens, const SequenceKind& kind, bool is_last) {
  const auto found = indices_.find(id);
  if (found == indices_.end()) return false;
  Shared& shared = *found->second;
  SuffixIndex& index = *shared.index;
  if (!sequence) sequence = open_sequence(shared, kind);
  const bool is_tight = budget_.is_exhausted(shared.group);
  const std::size_t work = is_tight ? index.make_holes(tokens.size()) : 0;
  const bool is_full = is_tight && !index.has_holes(tokens.size());
  if (!is_full) index.append(*sequence, tokens);
  if (is_last || is_full) index.close(*sequence);
  index.enforce_incrementally(tokens.size());
  budget_.account(shared, is_full ? 0 : tokens.size());
  budget_.balance(work);
  return !is_full;
}

bool TreeRegistry::forget_piece(IndexId id, std::span<const std::int32_t> tokens) {
  const auto found = indices_.find(id);
  if (found == indices_.end()) return false;
  Shared& shared = *found->second;
  const bool is_left = shared.index->forget_piece(tokens);
  if (is_left) shared.index->enforce_incrementally(SuffixIndex::kPieceTokens);
  budget_.account(shared);
  return is_left;
}

SequenceId TreeRegistry::open_sequence(Shared& shared, const SequenceKind& kind) {
  try {
    return shared.index->open(kind.uses, kind.origin);
  } catch (...) {
    budget_.account(shared);  // its arrays may have grown nevertheless
    throw;
  }
}

const Shared& TreeRegistry::shared(IndexId id) const { return *held_index(id); }

const std::shared_ptr<Shared>& TreeRegistry::held_index(IndexId id) const {
  const auto found = indices_.find(id);
  if (found == indices_.end()) throw UnknownIdError("there is no " + name("index", id));
  return found->second;
}

// ---- models -------------------------------------------------------------------------------------------

ModelId TreeRegistry::create_model(GroupId group, const AcceptanceModel& learned) {
  budget_.check_group(group);
  auto model = std::make_shared<Model>(group, learned);
  models_.emplace(next_model_, model);
  budget_.add_model(*model);
  budget_.balance();
  return next_model_++;
}

void TreeRegistry::drop_model(ModelId id) {
  budget_.remove_model(*held_model(id));
  models_.erase(id);
}

const std::shared_ptr<Model>& TreeRegistry::held_model(ModelId id) const {
  const auto found = models_.find(id);
  if (found == models_.end()) throw UnknownIdError("there is no " + name("model", id));
  return found->second;
}

// ---- live requests ------------------------------------------------------------------------------------

void TreeRegistry::admit(const std::shared_ptr<Request>& request, const NewRequest& made) {
  if (requests_.contains(request->id))
    throw DuplicateIdError(name("request", request->id) + " is live already");
  budget_.check_group(request->group);
  const auto found_model = made.model ? models_.find(*made.model) : models_.end();
  if (found_model != models_.end()) {
    request->model = found_model->second;
    request->context = {kBeginToken};
  }
  const auto place = requests_.emplace(request->id, request).first;
  try {
    connect(*request, made);
    budget_.add(*request, request->own.text_bytes());
  } catch (...) {
    close_sequences(*request);
    requests_.erase(place);
    throw;
  }
  budget_.balance();
}

void TreeRegistry::connect(Request& request, const NewRequest& made) {
  for (const SharedSource& source : made.sources) {
    const auto found = indices_.find(source.index);
    if (found == indices_.end()) continue;
    Link link{};
    link.shared = found->second;
    link.source = source.source;
    request.links.push_back(std::move(link));
  }
  std::stable_sort(request.links.begin(), request.links.end(),
                   [](const Link& a, const Link& b) { return a.source < b.source; });
  if (!made.learn) return;
  for (Link& link : request.links) {
    link.sequence = open_sequence(*link.shared, {});
    link.has_sequence = true;
    link.shared->index->enforce_incrementally(1);
    budget_.account(*link.shared);
  }
}

// The learned output stays in the shared indices.
void TreeRegistry::close_sequences(const Request& request) {
  for (const Link& link : request.links) {
    if (!link.has_sequence || link.shared->index == nullptr) continue;
    link.shared->index->close(link.sequence);
    link.shared->index->enforce_incrementally(SuffixIndex::kPieceTokens);
    budget_.account(*link.shared);
  }
}

std::shared_ptr<Request> TreeRegistry::remove(RequestId id, bool keep) {
  const std::shared_ptr<Request> finished = request(id);
  requests_.erase(id);
  budget_.remove(*finished);
  finished->is_finished = true;  // a concurrent step in pieces then skips it
  if (keep) close_sequences(*finished);
  budget_.balance();
  return finished;
}

bool TreeRegistry::withdraw_piece(const Link& link) {
  if (link.shared->index == nullptr) return false;
  SuffixIndex& index = *link.shared->index;
  const bool is_gone = index.remove_piece(link.sequence);
  index.enforce_incrementally(SuffixIndex::kPieceTokens);
  budget_.account(*link.shared);
  return !is_gone;
}

const std::shared_ptr<Request>& TreeRegistry::request(RequestId id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw UnknownIdError("there is no live " + name("request", id));
  return found->second;
}

// Checks a whole batch before anything is changed.
RequestBatch TreeRegistry::resolve(std::span<const RequestId> ids) {
  RequestBatch batch;
  batch.reserve(ids.size());
  ++num_batches_;
  for (const RequestId id : ids) {
    Request& named = *request(id);
    if (named.batch == num_batches_)
      throw DuplicateIdError(name("request", id) + " occurs twice in one batch");
    named.batch = num_batches_;
    batch.push_back(&named);
  }
  return batch;
}

std::vector<std::shared_ptr<Request>> TreeRegistry::hold(std::span<const RequestId> ids) const {
  std::vector<std::shared_ptr<Request>> held;
  for (const RequestId id : ids) held.push_back(request(id));
  return held;
}

// ---- integrity ----------------------------------------------------------------------------------------

void TreeRegistry::check_integrity() const {
  std::vector<std::size_t> bytes(budget_.num_groups());
  for (const auto& [id, held] : indices_) {
    held->index->check_integrity();
    if (held->bytes != held->index->memory_bytes()) throw IntegrityError("an index is miscounted");
    bytes[held->group] += held->bytes;
  }
  for (const auto& [id, live] : requests_) {
    if (live->own.is_ready()) {
      live->own.automaton().check_structure();
      if (live->bytes != live->own->memory_bytes()) throw IntegrityError("a request is miscounted");
    }
    bytes[live->group] += live->bytes + live->scored.counted_bytes;
  }
  for (const auto& [id, model] : models_) bytes[model->group] += sizeof(Model);
  budget_.check_totals(bytes);
}

}  // namespace agentspec
