// ForestCore's budgets: who makes room when a group, or everything, comes near its limit.

#include <algorithm>

#include "core/forest_core.hpp"

namespace agentspec {
namespace {

/// From here on a budget is kept by small steps, so that it is never reached.
std::size_t soft_limit(std::size_t limit_bytes) { return limit_bytes - limit_bytes / 16; }
/// From here on only what goes into holes is learned, until there is room again.
std::size_t last_limit(std::size_t limit_bytes) { return limit_bytes - limit_bytes / 32; }

}  // namespace

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
  account(request.bytes, request.own_bytes, request.group);
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

}  // namespace agentspec
