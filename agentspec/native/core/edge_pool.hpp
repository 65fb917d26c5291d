// The outgoing edges of all states of one automaton.
//
// Every state keeps its best edge inline; the others lie in one block of the pool. Blocks have a power
// of two of slots: up to 8 they are plain arrays (one cache line), above that small hash tables of their
// own. So a look-up touches one block, a state's edges can be enumerated, and no table of all edges ever
// has to be rehashed at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/pod_array.hpp"

namespace agentspec {

using StateId = std::uint32_t;
constexpr StateId kNoState = 0xFFFFFFFFu;
constexpr std::int32_t kNoToken = -1;

struct Edge {
  std::int32_t token;
  StateId target;
};

/// A state's edges. 12 bytes; which edge is the best one is decided by the automaton, not here.
struct EdgeList {
  std::int32_t best_token = kNoToken;  // kNoToken: the list is empty
  StateId best_target = kNoState;
  std::uint32_t block_class : 5 = 0;  // 0: no block; k: the block has 2^(k-1) slots
  std::uint32_t block : 27 = 0;       // first slot of the block in the pool

  bool is_empty() const { return best_token == kNoToken; }
};
static_assert(sizeof(EdgeList) == 12);

class EdgePool {
 public:
  /// Most slots a pool can address; the owner stops before that.
  static constexpr std::size_t kMaxSlots = std::size_t{1} << 27;

  EdgePool() { free_.fill(kNoBlock); }

  /// Target of the edge, kNoState if there is none. O(1) expected.
  StateId find(const EdgeList& list, std::int32_t token) const;
  /// Adds an edge that is not there yet. O(1) amortized.
  void add(EdgeList& list, std::int32_t token, StateId target);
  /// If the edge leads to `from`, makes it lead to `to`; tells whether it did. O(1) expected.
  bool retarget(EdgeList& list, std::int32_t token, StateId from, StateId to);
  /// Removes an edge that is there. If it was the best one, an arbitrary other edge takes its place.
  void remove(EdgeList& list, std::int32_t token);
  /// Makes an edge that is there the best one. O(1) expected.
  void promote(EdgeList& list, std::int32_t token);
  /// A second list with the same edges. O(edges).
  EdgeList copy(const EdgeList& list) { return copy_from(*this, list); }
  EdgeList copy_from(const EdgePool& pool, const EdgeList& list);
  /// Empties the list and gives its block back. O(1).
  void release(EdgeList& list);

  /// Calls visit(edge) for every edge, the best one first.
  template <typename Visit>
  void for_each(const EdgeList& list, Visit visit) const;
  /// Calls visit(target&) for every edge.
  template <typename Visit>
  void for_each_target(EdgeList& list, Visit visit);

  /// An upper bound on the counts of the edges that are not the best; ~0 where none is kept (small lists).
  std::uint32_t rival_bound(const EdgeList& list) const;
  void set_rival_bound(EdgeList& list, std::uint32_t count);
  /// Raises the bound to at least `count`.
  void note_rival(EdgeList& list, std::uint32_t count);

  std::size_t used_bytes() const { return used_slots_ * sizeof(Edge); }
  std::size_t capacity_bytes() const { return slots_.capacity_bytes(); }
  std::size_t num_slots() const { return slots_.size(); }
  /// Slots in the free lists; O(free blocks), for the integrity check.
  std::size_t count_free_slots() const;
  /// Slots of the list's block, for the integrity check.
  static std::size_t block_slots(const EdgeList& list);
  void reserve(std::size_t slots) { slots_.reserve(slots); }

 private:
  static constexpr std::uint32_t kNoBlock = 0xFFFFFFFFu;
  static constexpr std::uint32_t kMaxDenseClass =
      4;  // 8 slots; above, slot 0 is a header and the rest a table

  static bool is_hashed(const EdgeList& list) { return list.block_class > kMaxDenseClass; }
  // Header of a hashed block: `token` holds the number of edges, `target` the rival bound.
  Edge& header(const EdgeList& list) { return slots_[list.block]; }
  const Edge& header(const EdgeList& list) const { return slots_[list.block]; }

  std::size_t find_slot(const EdgeList& list, std::int32_t token) const;
  void put(EdgeList& list, std::int32_t token, StateId target);
  void take(EdgeList& list, std::size_t slot);
  std::size_t erase_dense(EdgeList& list, std::size_t slot);
  void erase_hashed(EdgeList& list, std::size_t slot);
  void resize(EdgeList& list, std::uint32_t block_class);
  std::uint32_t allocate(std::uint32_t block_class);
  void deallocate(std::uint32_t block, std::uint32_t block_class);

  PodArray<Edge> slots_;
  std::array<std::uint32_t, 32>
      free_;                    // per class, first free block; the next one is in its first slot's target
  std::size_t used_slots_ = 0;  // slots of the blocks that lists hold
};

template <typename Visit>
void EdgePool::for_each(const EdgeList& list, Visit visit) const {
  if (list.is_empty()) return;
  visit(Edge{list.best_token, list.best_target});
  const std::size_t end = list.block + block_slots(list);
  for (std::size_t i = list.block + (is_hashed(list) ? 1 : 0); i < end; ++i) {
    if (slots_[i].token != kNoToken) visit(slots_[i]);
  }
}

template <typename Visit>
void EdgePool::for_each_target(EdgeList& list, Visit visit) {
  if (list.is_empty()) return;
  visit(list.best_target);
  const std::size_t end = list.block + block_slots(list);
  for (std::size_t i = list.block + (is_hashed(list) ? 1 : 0); i < end; ++i) {
    if (slots_[i].token != kNoToken) visit(slots_[i].target);
  }
}

}  // namespace agentspec
