// ForestCore's budgets: which index makes room when a group, or everything, is near its limit.
//
// Every change of an index is counted in its group and in the whole. Both keep their largest index, so a call
// reads only its own changes and the largest.

#include <algorithm>

#include "core/forest/forest_core.hpp"

namespace agentspec {

Group& ForestCore::touch(GroupId id) noexcept {
  Group& group = groups_[id];
  if (!group.is_touched) {
    group.is_touched = true;
    group.next_touched = touched_;
    touched_ = id;
  }
  return group;
}

void ForestCore::account(std::size_t& seen, std::size_t now, Group& group) noexcept {
  whole_.bytes -= group.charge();
  group.bytes += now - seen;  // wraps around and back if it has shrunk
  whole_.bytes += group.charge();
  bytes_ += now - seen;
  seen = now;
}

void ForestCore::account(Shared& shared, std::size_t num_added) noexcept {
  Group& group = touch(shared.group);
  account(shared.bytes, shared.index->memory_bytes(), group);
  if (shared.spare_bytes != shared.bytes) rank(shared, shared.bytes);
  if (num_added == 0) return;
  if (shared.num_added == 0) {
    shared.next_grown = group.grown;
    group.grown = &shared;
  }
  shared.num_added += num_added;
  group.num_added += num_added;
  whole_.num_added += num_added;
}

void ForestCore::account(Request& request, std::size_t bytes, std::size_t num_added) noexcept {
  Group& group = touch(request.group);
  group.own_bytes += bytes - request.bytes;
  whole_.own_bytes += bytes - request.bytes;
  account(request.bytes, bytes, group);
  group.num_added += num_added;
  whole_.num_added += num_added;
}

// Removes an index that ran out of memory.
void ForestCore::account_own(Request& request, std::size_t num_added) noexcept {
  if (request.own == nullptr) return mute(request);
  account(request, request.own_bytes, num_added);
}

void ForestCore::account_considered(Request& request) noexcept {
  const std::size_t bytes = (request.considered.capacity() + request.judged.capacity()) * sizeof(Considered);
  if (bytes != request.considered_bytes) account(request.considered_bytes, bytes, touch(request.group));
}

void ForestCore::rank(Shared& shared, std::size_t spare_bytes) noexcept {
  shared.spare_bytes = spare_bytes;
  groups_[shared.group].indices.update(shared);
  whole_.indices.update(shared);
}

bool ForestCore::is_exhausted(GroupId group) const {
  return whole_.bytes > whole_.last_limit() || groups_[group].bytes > groups_[group].last_limit();
}

// Ends every call that adds tokens, and may have done some of the work before. Groups share the rest of a
// call's work in proportion to their added tokens.
void ForestCore::balance(std::size_t work_done) {
  constexpr std::size_t kLeast = SuffixIndex::kMostWork / 4;  // so that later groups get some work
  std::size_t work_left = SuffixIndex::kMostWork - std::min(work_done, SuffixIndex::kMostWork - kLeast);
  std::size_t num_left = whole_.num_added;
  const GroupId first = touched_;
  for (GroupId id = first; id != kNoGroup; id = groups_[id].next_touched) {
    Group& group = groups_[id];
    const std::size_t max_work = num_left == 0 ? work_left : work_left * group.num_added / num_left;
    num_left -= group.num_added;
    work_left -= relieve(group, id, group.next_touched, max_work);
    keep_within(group, id);
  }
  relieve(whole_, first, kNoGroup, work_left);
  keep_within(whole_, kNoGroup);
  for (; touched_ != kNoGroup; touched_ = groups_[touched_].next_touched) {
    Group& group = groups_[touched_];
    for (; group.grown != nullptr; group.grown = group.grown->next_grown) group.grown->num_added = 0;
    group.is_touched = false;
    group.num_added = 0;
  }
  whole_.num_added = 0;
}

// Near the limit, indices of about the largest size evict as much as they add. The largest shrinks, so that
// smaller ones may grow. `begin` to `end` are the touched groups.
std::size_t ForestCore::relieve(Budget& budget, GroupId begin, GroupId end, std::size_t max_work) {
  if (budget.bytes <= budget.soft_limit()) return 0;
  Shared* const largest = largest_of(budget);
  if (largest == nullptr) return 0;
  const std::size_t ranking = &budget == &whole_ ? Shared::kOfAll : Shared::kOfGroup;
  std::size_t work_left = max_work;
  for (GroupId id = begin; id != end; id = groups_[id].next_touched) {
    for (Shared* grown = groups_[id].grown; grown != nullptr; grown = grown->next_grown) {
      if (grown->weigh(grown->bytes, ranking) > largest->weigh(largest->bytes, ranking) / 2) {
        make_room(*grown, grown->bytes, grown->num_added, work_left);
      }
    }
  }
  const std::size_t excess = budget.bytes - std::min(budget.bytes, budget.soft_limit());
  make_room(*largest, largest->bytes - std::min(largest->bytes, excess), budget.num_added, work_left);
  return max_work - work_left;
}

// Considers indices with evictable text; empty ones close their holes.
Shared* ForestCore::largest_of(Budget& budget) {
  Shared* largest = budget.indices.first();
  while (largest != nullptr && largest->spare_bytes > 0 && largest->index->num_tokens() == 0) {
    largest->index->enforce(0);
    account(*largest);
    rank(*largest, 0);
    largest = budget.indices.first();
  }
  return largest;
}

void ForestCore::make_room(Shared& shared, std::size_t limit_bytes, std::size_t num_changed,
                           std::size_t& work_left) {
  work_left -= std::min(work_left, shared.index->approach(limit_bytes, num_changed, work_left));
  account(shared);
}

// Beyond the limit: the largest indices first, then live requests' own ones.
void ForestCore::keep_within(Budget& budget, GroupId group) {
  while (budget.bytes > budget.limit_bytes) {
    Shared* const largest = budget.indices.first();
    if (largest == nullptr || largest->spare_bytes == 0) {
      if (budget.own_bytes == 0 || !mute_largest_request(group)) return;
      continue;
    }
    const std::size_t before = largest->bytes;
    const std::size_t excess = budget.bytes - budget.limit_bytes + before / 16;
    largest->index->enforce(before - std::min(before, excess));
    account(*largest);
    if (largest->bytes >= before) rank(*largest, 0);
  }
}

// Drops the own index of the largest live request of a group, or of all. Returns false if there is none.
bool ForestCore::mute_largest_request(GroupId group) {
  Request* largest = nullptr;
  RequestId largest_id = 0;
  for (const auto& [id, candidate] : requests_) {
    if ((group != kNoGroup && group != candidate->group) || candidate->bytes == 0) continue;
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
