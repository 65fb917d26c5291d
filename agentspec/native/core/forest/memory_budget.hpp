// Memory of a forest: what each group and everything takes, and which index makes room near a limit.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/forest/request.hpp"

namespace agentspec {

/// A binary heap that moves a thing when its size changes. T has `is_larger(other, ranking)`, an order
/// without ties, and `places`, its position in each ranking that it belongs to; rankings are numbered.
template <typename T>
class LargestFirst {
 public:
  explicit LargestFirst(std::size_t ranking) : ranking_(ranking) {}

  /// Returns the largest thing, or nullptr if the heap is empty. O(1).
  T* first() const { return heap_.empty() ? nullptr : heap_.front(); }
  /// Reserves room for add(), which must follow it. Throws std::bad_alloc, unchanged.
  void make_place() {
    heap_.push_back(nullptr);
    heap_.pop_back();
  }
  /// O(log n).
  void add(T& thing) noexcept {
    heap_.push_back(&thing);
    put(thing, heap_.size() - 1);
    update(thing);
  }
  void remove(T& thing) noexcept {
    const std::size_t place = thing.places[ranking_];
    T& last = *heap_.back();
    heap_.pop_back();
    if (&last == &thing) return;
    put(last, place);
    update(last);
  }
  /// Restores the order after a change of size. O(log n).
  void update(T& thing) noexcept {
    rise(thing);
    sink(thing);
  }

 private:
  void put(T& thing, std::size_t place) {
    heap_[place] = &thing;
    thing.places[ranking_] = place;
  }
  void rise(T& thing) {
    std::size_t place = thing.places[ranking_];
    for (; place > 0 && thing.is_larger(*heap_[(place - 1) / 2], ranking_); place = (place - 1) / 2) {
      put(*heap_[(place - 1) / 2], place);
    }
    put(thing, place);
  }
  void sink(T& thing) {
    std::size_t place = thing.places[ranking_];
    for (std::size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1]->is_larger(*heap_[child], ranking_)) ++child;
      if (!heap_[child]->is_larger(thing, ranking_)) break;
      put(*heap_[child], place);
      place = child;
    }
    put(thing, place);
  }

  std::size_t ranking_;
  std::vector<T*> heap_;
};

struct Budget {
  std::size_t limit_bytes;
  LargestFirst<Shared> indices;
  std::size_t bytes = 0;
  std::size_t own_bytes = 0;  // the part in live requests' own indices
  std::size_t num_added = 0;  // tokens added since the last balance

  /// Above it, the budget is enforced in small steps, so that the limit is never reached.
  std::size_t soft_limit() const { return limit_bytes - limit_bytes / 16; }
  /// Above it, only updates that fit into holes are learned, until there is room again.
  std::size_t last_limit() const { return limit_bytes - limit_bytes / 32; }
};

struct Group : Budget {
  explicit Group(std::size_t limit) : Budget{limit, LargestFirst<Shared>(Shared::kOfGroup)} {}

  Shared* grown = nullptr;  // list of its indices with tokens added since the last balance
  bool is_touched = false;  // true if it has changed since then
  GroupId next_touched = 0;

  /// The charge to the budget of everything. A group's excess over its own limit can't be evicted, so it is
  /// not charged to the others.
  std::size_t charge() const { return std::min(bytes, limit_bytes); }
};

/// Counts every change of an index, a request or a model in its group and in the whole. Both know their
/// largest index, so a call reads only its own changes and the largest. Not thread-safe: the forest's lock
/// guards it. Only is_exhausted() may be read by several threads during a batch, since nothing is counted
/// then.
class MemoryBudget {
 public:
  /// `own_changed` is notified when a request loses its own index.
  MemoryBudget(std::size_t limit_bytes, std::condition_variable_any& own_changed);

  GroupId create_group(std::size_t limit_bytes);
  /// Throws UnknownIdError.
  void check_group(GroupId id) const;

  /// Reserves room for add(), which must follow it. Throws std::bad_alloc, unchanged.
  void make_place(const Shared& shared);
  void add(Shared& shared) noexcept;
  void remove(Shared& shared) noexcept;
  /// Adds a request with `bytes` of its own. Throws std::bad_alloc, unchanged.
  void add(Request& request, std::size_t bytes);
  void remove(Request& request) noexcept;
  void add_model(const Model& model) noexcept;
  void remove_model(const Model& model) noexcept;

  /// Counts an index after a change, in which `num_added` tokens were appended. O(log indices).
  void account(Shared& shared, std::size_t num_added = 0) noexcept;
  /// Counts the own index and text of a request as `bytes`.
  void account(Request& request, std::size_t bytes, std::size_t num_added = 0) noexcept;
  /// Counts the own index of a request after an append. Drops an index that ran out of memory.
  void account_own(Request& request, std::size_t num_added) noexcept;
  /// Counts what the request keeps for its model.
  void account_scored(Request& request) noexcept;
  /// Drops a request's own index, or its text. While the index is being built, its builder frees it.
  void drop_own_index(Request& request) noexcept;

  /// True if appends may only fill holes: the group, or everything, is at its limit.
  bool is_exhausted(GroupId group) const;
  /// Enforces all limits. Ends every call that adds tokens, and may have done `work_done` of the work before.
  /// Groups share the rest of a call's work in proportion to their added tokens.
  void balance(std::size_t work_done = 0);

  /// Bytes of everything, of a group. O(1).
  std::size_t bytes() const { return bytes_; }
  std::size_t group_bytes(GroupId id) const;
  std::size_t num_groups() const { return groups_.size(); }
  /// Compares the counts with those of a recount. Throws IntegrityError.
  void check_totals(std::span<const std::size_t> group_bytes) const;

 private:
  static constexpr GroupId kNoGroup = ~GroupId{0};

  Group& touch(GroupId id) noexcept;
  void account(std::size_t& seen, std::size_t now, Group& group) noexcept;
  void rank(Shared& shared, std::size_t spare_bytes) noexcept;
  std::size_t rebalance(Budget& budget, GroupId begin, GroupId end, std::size_t max_work);
  void keep_within(Budget& budget, GroupId group);
  Shared* largest_of(Budget& budget);
  void make_room(Shared& shared, std::size_t limit_bytes, std::size_t num_changed, std::size_t& work_left);
  bool drop_largest_own_index(GroupId group);

  std::condition_variable_any& own_changed_;
  std::vector<Group> groups_;
  std::vector<Request*> requests_;
  std::size_t bytes_ = 0;       // of all groups
  Budget whole_;                // charged with each group up to its limit
  GroupId touched_ = kNoGroup;  // a list of the groups that have changed since the last balance()
};

}  // namespace agentspec
