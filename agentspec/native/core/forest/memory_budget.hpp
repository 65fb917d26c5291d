// Memory of a forest: what each group and everything takes, and which index makes room near a limit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <span>
#include <vector>

#include "core/forest/budget.hpp"
#include "core/forest/request.hpp"

namespace agentspec {

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
