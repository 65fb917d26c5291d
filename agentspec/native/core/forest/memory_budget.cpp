#include "core/forest/memory_budget.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"

namespace agentspec {

MemoryBudget::MemoryBudget(std::size_t limit_bytes, std::condition_variable_any& own_changed)
    : own_changed_(own_changed), whole_{limit_bytes, LargestFirst<Shared>(Shared::kOfAll)} {}

GroupId MemoryBudget::create_group(std::size_t limit_bytes) {
  groups_.emplace_back(limit_bytes);
  return static_cast<GroupId>(groups_.size() - 1);
}

void MemoryBudget::check_group(GroupId id) const {
  if (id >= groups_.size()) throw UnknownIdError("there is no group " + std::to_string(id));
}

// ---- members ------------------------------------------------------------------------------------------

void MemoryBudget::make_place(const Shared& shared) {
  groups_[shared.group].indices.make_place();
  whole_.indices.make_place();
}

void MemoryBudget::add(Shared& shared) noexcept {
  groups_[shared.group].indices.add(shared);
  whole_.indices.add(shared);
  account(shared);
}

void MemoryBudget::remove(Shared& shared) noexcept {
  account(shared.bytes, 0, groups_[shared.group]);
  groups_[shared.group].indices.remove(shared);
  whole_.indices.remove(shared);
}

void MemoryBudget::add(Request& request, std::size_t bytes) {
  request.place = requests_.size();
  requests_.push_back(&request);
  account(request, bytes, 1);
}

void MemoryBudget::remove(Request& request) noexcept {
  account(request, 0, 1);
  account(request.scored.counted_bytes, 0, groups_[request.group]);
  requests_[request.place] = requests_.back();
  requests_[request.place]->place = request.place;
  requests_.pop_back();
}

void MemoryBudget::add_model(const Model& model) noexcept {
  std::size_t held = 0;
  account(held, sizeof(Model), touch(model.group));
}

void MemoryBudget::remove_model(const Model& model) noexcept {
  std::size_t held = sizeof(Model);
  account(held, 0, groups_[model.group]);
}

// ---- counts -------------------------------------------------------------------------------------------

Group& MemoryBudget::touch(GroupId id) noexcept {
  Group& group = groups_[id];
  if (!group.is_touched) {
    group.is_touched = true;
    group.next_touched = touched_;
    touched_ = id;
  }
  return group;
}

void MemoryBudget::account(std::size_t& seen, std::size_t now, Group& group) noexcept {
  whole_.bytes -= group.charge();
  group.bytes += now - seen;  // wraps around and back if it has shrunk
  whole_.bytes += group.charge();
  bytes_ += now - seen;
  seen = now;
}

void MemoryBudget::account(Shared& shared, std::size_t num_added) noexcept {
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

void MemoryBudget::account(Request& request, std::size_t bytes, std::size_t num_added) noexcept {
  Group& group = touch(request.group);
  group.own_bytes += bytes - request.bytes;
  whole_.own_bytes += bytes - request.bytes;
  account(request.bytes, bytes, group);
  group.num_added += num_added;
  whole_.num_added += num_added;
}

void MemoryBudget::account_own(Request& request, std::size_t num_added) noexcept {
  if (request.own.has_failed()) return drop_own_index(request);
  account(request, request.own.num_bytes(), num_added);
}

void MemoryBudget::account_scored(Request& request) noexcept {
  if (request.is_finished) return;  // it is not counted any more
  const std::size_t bytes = request.scored.memory_bytes();
  if (bytes != request.scored.counted_bytes)
    account(request.scored.counted_bytes, bytes, touch(request.group));
}

void MemoryBudget::rank(Shared& shared, std::size_t spare_bytes) noexcept {
  shared.spare_bytes = spare_bytes;
  groups_[shared.group].indices.update(shared);
  whole_.indices.update(shared);
}

// ---- limits -------------------------------------------------------------------------------------------

bool MemoryBudget::is_exhausted(GroupId group) const {
  return whole_.bytes > whole_.last_limit() || groups_[group].bytes > groups_[group].last_limit();
}

void MemoryBudget::balance(std::size_t work_done) {
  constexpr std::size_t kLeast = SuffixIndex::kMostWork / 4;  // so that later groups get some work
  std::size_t work_left = SuffixIndex::kMostWork - std::min(work_done, SuffixIndex::kMostWork - kLeast);
  std::size_t num_left = whole_.num_added;
  const GroupId first = touched_;
  for (GroupId id = first; id != kNoGroup; id = groups_[id].next_touched) {
    Group& group = groups_[id];
    const std::size_t max_work = num_left == 0 ? work_left : work_left * group.num_added / num_left;
    num_left -= group.num_added;
    work_left -= rebalance(group, id, group.next_touched, max_work);
    keep_within(group, id);
  }
  rebalance(whole_, first, kNoGroup, work_left);
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
std::size_t MemoryBudget::rebalance(Budget& budget, GroupId begin, GroupId end, std::size_t max_work) {
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
Shared* MemoryBudget::largest_of(Budget& budget) {
  Shared* largest = budget.indices.first();
  while (largest != nullptr && largest->spare_bytes > 0 && largest->index->num_tokens() == 0) {
    largest->index->enforce(0);
    account(*largest);
    rank(*largest, 0);
    largest = budget.indices.first();
  }
  return largest;
}

void MemoryBudget::make_room(Shared& shared, std::size_t limit_bytes, std::size_t num_changed,
                             std::size_t& work_left) {
  work_left -= std::min(work_left, shared.index->shrink_towards(limit_bytes, num_changed, work_left));
  account(shared);
}

// Beyond the limit: the largest indices first, then live requests' own ones.
void MemoryBudget::keep_within(Budget& budget, GroupId group) {
  while (budget.bytes > budget.limit_bytes) {
    Shared* const largest = budget.indices.first();
    if (largest == nullptr || largest->spare_bytes == 0) {
      if (budget.own_bytes == 0 || !drop_largest_own_index(group)) return;
      continue;
    }
    const std::size_t before = largest->bytes;
    const std::size_t excess = budget.bytes - budget.limit_bytes + before / 16;
    largest->index->enforce(before - std::min(before, excess));
    account(*largest);
    if (largest->bytes >= before) rank(*largest, 0);
  }
}

// Returns false if there is no own index in the group, or in any (kNoGroup).
bool MemoryBudget::drop_largest_own_index(GroupId group) {
  Request* largest = nullptr;
  for (Request* candidate : requests_) {
    if ((group != kNoGroup && group != candidate->group) || candidate->bytes == 0) continue;
    const bool is_larger = largest == nullptr || candidate->bytes > largest->bytes ||
                           (candidate->bytes == largest->bytes && candidate->id < largest->id);
    if (is_larger) largest = candidate;
  }
  if (largest == nullptr) return false;
  drop_own_index(*largest);
  return true;
}

void MemoryBudget::drop_own_index(Request& request) noexcept {
  request.own.drop();
  account(request, 0);
  own_changed_.notify_all();
}

// ---- figures ------------------------------------------------------------------------------------------

std::size_t MemoryBudget::group_bytes(GroupId id) const {
  check_group(id);
  return groups_[id].bytes;
}

void MemoryBudget::check_totals(std::span<const std::size_t> group_bytes) const {
  std::size_t bytes = 0;
  std::size_t charges = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].bytes != group_bytes[i]) throw IntegrityError("a group is miscounted");
    bytes += groups_[i].bytes;
    charges += groups_[i].charge();
  }
  if (bytes != bytes_ || charges != whole_.bytes) throw IntegrityError("the total is miscounted");
}

}  // namespace agentspec
