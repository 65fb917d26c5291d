// The trees and models of a forest by id, and the requests that draft from them and learn into them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/forest/batch.hpp"
#include "core/forest/memory_budget.hpp"
#include "core/forest/request.hpp"

namespace agentspec {

/// How a finished sequence counts: as `uses` equal ones, from one place.
struct SequenceKind {
  std::uint32_t uses = 1;
  Origin origin = Origin::kLocal;
};

/// Owns the shared indices, the models and the live requests. Not thread-safe: the forest's lock guards it.
/// Ids of indices and models are never reused. Every change is counted in the budget, and calls that add
/// tokens enforce it. A call that throws has changed nothing, except that std::bad_alloc may have emptied an
/// index. What a call returns as a pointer is to be freed after the lock.
class TreeRegistry {
 public:
  TreeRegistry(std::uint32_t depth, MemoryBudget& budget) : depth_(depth), budget_(budget) {}

  /// O(1). Throws UnknownIdError.
  IndexId create_index(GroupId group, std::size_t limit_bytes, std::uint32_t weight);
  /// O(1), the result is freed in O(states). Throws UnknownIdError.
  std::unique_ptr<SuffixIndex> drop_index(IndexId id);
  /// Throws UnknownIdError.
  const Shared& shared(IndexId id) const;
  SuffixIndex& index(IndexId id) const { return *shared(id).index; }
  /// Appends a piece of a finished sequence to an index; the first piece opens it. Returns false if the index
  /// takes no more: it is unknown or full.
  bool learn_piece(IndexId id, std::optional<SequenceId>& sequence, std::span<const std::int32_t> tokens,
                   const SequenceKind& kind, bool is_last);
  /// Removes some of the outputs of these tokens (not empty). Returns false once the index holds no more of
  /// them or is unknown.
  bool forget_piece(IndexId id, std::span<const std::int32_t> tokens);

  /// Throws UnknownIdError.
  ModelId create_model(GroupId group, const AcceptanceModel& learned);
  /// Live requests keep it. Throws UnknownIdError.
  void drop_model(ModelId id);
  /// Throws UnknownIdError.
  const AcceptanceModel& model(ModelId id) const { return held_model(id)->acceptance; }

  /// Makes a request live, with the text that waits for its index. Ignores unknown indices and an unknown
  /// model. O(sources). Throws DuplicateIdError, UnknownIdError.
  void admit(const std::shared_ptr<Request>& request, const NewRequest& made);
  /// Removes a live request; its output stays in the shared indices if `keep`. Otherwise withdraw_piece() has
  /// to follow for each link. O(sources). Throws UnknownIdError.
  std::shared_ptr<Request> remove(RequestId id, bool keep);
  /// Removes some of an output. Returns false once the index holds nothing more of it.
  bool withdraw_piece(const Link& link);
  /// Throws UnknownIdError.
  const std::shared_ptr<Request>& request(RequestId id) const;
  /// Returns the requests of a batch. Throws UnknownIdError, DuplicateIdError.
  RequestBatch resolve(std::span<const RequestId> ids);
  /// Returns the same requests as owners: none of them is freed meanwhile.
  std::vector<std::shared_ptr<Request>> hold(std::span<const RequestId> ids) const;
  std::size_t num_requests() const { return requests_.size(); }

  /// Checks every index and recounts all memory. Throws IntegrityError.
  void check_integrity() const;

 private:
  const std::shared_ptr<Shared>& held_index(IndexId id) const;
  const std::shared_ptr<Model>& held_model(ModelId id) const;
  void connect(Request& request, const NewRequest& made);
  SequenceId open_sequence(Shared& shared, const SequenceKind& kind);
  void close_sequences(const Request& request);

  const std::uint32_t depth_;
  MemoryBudget& budget_;
  std::unordered_map<IndexId, std::shared_ptr<Shared>> indices_;
  std::unordered_map<RequestId, std::shared_ptr<Request>> requests_;
  std::unordered_map<ModelId, std::shared_ptr<Model>> models_;
  IndexId next_index_ = 0;
  ModelId next_model_ = 0;
  std::uint64_t num_batches_ = 0;
};

}  // namespace agentspec
