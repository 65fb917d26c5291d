// The outgoing edges of all states of one automaton.
//
// Each state stores its best edge inline and the others in one block. The number of slots in a block is a
// power of two. Up to 8 slots the block is a plain array (one cache line), above that a small hash table. A
// look-up therefore touches one block, and a state's edges can be enumerated. No table of all edges ever has
// to be rehashed. The blocks of one size lie in one array, filled from below.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/pod_array.hpp"

namespace agentspec {

/// Filling holes from below keeps the array dense and lets its end be cut off. The pool has two levels of
/// bitmaps. acquire() reads one word of 64 numbers and, from the last hole on, one word per 4,096 numbers.
class IdPool {
 public:
  std::uint32_t acquire();
  void release(std::uint32_t id);
  /// Releases all numbers but 0, which is in use. Allocates no memory.
  void release_all_but_first() noexcept;
  bool is_used(std::uint32_t id) const { return id < end_ && (free_[id / 64] >> (id % 64) & 1) == 0; }
  /// Exclusive upper bound of the numbers in use. It falls when the highest ones are released.
  std::uint32_t end() const { return end_; }
  std::size_t num_used() const { return num_used_; }
  void trim() {
    free_.shrink_to_fit();
    has_free_.shrink_to_fit();
  }
  std::size_t memory_bytes() const { return free_.memory_bytes() + has_free_.memory_bytes(); }

 private:
  void cut_end();

  PodArray<std::uint64_t> free_;      // bit: the number is below end() and free
  PodArray<std::uint64_t> has_free_;  // bit: the word of free_ is not zero
  std::uint32_t end_ = 0;
  std::uint32_t lowest_ = 0;  // words of has_free_ before this one are zero
  std::size_t num_used_ = 0;
};

using StateId = std::uint32_t;
constexpr StateId kNoState = 0xFFFFFFFFu;
constexpr std::int32_t kNoToken = -1;

struct Edge {
  std::int32_t token;
  StateId target;
};

/// A state's edges, in 12 bytes. The automaton decides which edge is the best one.
struct EdgeList {
  std::int32_t best_token = kNoToken;  // kNoToken: the list is empty
  StateId best_target = kNoState;
  std::uint32_t block_class : 5 = 0;  // 0: no block; k: the block has 2^(k-1) slots
  std::uint32_t block : 27 = 0;       // number of the block among those of its class

  bool is_empty() const { return best_token == kNoToken; }
};
static_assert(sizeof(EdgeList) == 12);

class EdgePool {
 public:
  /// Most blocks of one class that a list can address.
  static constexpr std::size_t kMaxBlocks = std::size_t{1} << 27;

  /// Returns a pointer to the edge's target, or nullptr if there is no such edge. O(1) expected.
  const StateId* find(const EdgeList& list, std::int32_t token) const;
  StateId* find(EdgeList& list, std::int32_t token) {
    return const_cast<StateId*>(static_cast<const EdgePool*>(this)->find(list, token));
  }
  /// Number of edges. O(1).
  std::size_t size(const EdgeList& list) const;
  /// Adds an edge that the list does not have yet. O(1) amortized. Throws CapacityError.
  void add(EdgeList& list, std::int32_t token, StateId target);
  /// Removes an existing edge. If it was the best one, an arbitrary other edge becomes the best.
  void remove(EdgeList& list, std::int32_t token);
  /// Makes an existing edge the best one. O(1) expected.
  void promote(EdgeList& list, std::int32_t token);
  /// Returns a second list with the same edges. O(edges).
  EdgeList copy(const EdgeList& list);
  /// Empties the list and frees its block. O(1).
  void release(EdgeList& list);
  /// Frees all blocks and invalidates all lists. Allocates no memory.
  void clear() noexcept;
  /// Moves the list's block to the lowest free place of its class, if that is lower. O(edges).
  void move_down(EdgeList& list);

  /// Calls visit(edge) for every edge, the best one first; visit(Edge&) may change targets.
  template <typename Visit>
  void for_each(const EdgeList& list, Visit visit) const;
  template <typename Visit>
  void for_each_target(EdgeList& list, Visit visit);

  /// Bytes of the block that `num_edges` more edges would move the list into; 0 if they fit, or if the list
  /// is small.
  std::size_t growth_bytes(const EdgeList& list, std::size_t num_edges) const;

  /// Upper bound on the counts of all edges but the best; ~0 for small lists, which store none.
  std::uint32_t rival_bound(const EdgeList& list) const;
  void set_rival_bound(EdgeList& list, std::uint32_t count);
  /// Raises the bound to at least `count`.
  void note_rival(EdgeList& list, std::uint32_t count);

  /// Bytes of the blocks in use; of the arrays up to the last of them; of all memory.
  std::size_t used_bytes() const;
  std::size_t extent_bytes() const;
  std::size_t memory_bytes() const;
  /// Returns the memory beyond the arrays' ends.
  void trim();
  void prefetch(const EdgeList& list) const {
    if (list.block_class != 0) __builtin_prefetch(begin(list));
  }
  /// Prefetches the block, and the first slot to probe for an edge that will be looked up.
  void prefetch(const EdgeList& list, std::int32_t token) const;
  /// Number of slots in the list's block.
  static std::size_t block_slots(const EdgeList& list) {
    return list.block_class == 0 ? 0 : std::size_t{1} << (list.block_class - 1);
  }

 private:
  static constexpr std::uint32_t kMaxClass = 31;
  static constexpr std::uint32_t kMaxDenseClass = 4;  // 8 slots; above, slot 0 is a header, the rest a table

  struct Slab {  // the blocks of one class
    IdPool blocks;
    PodArray<Edge> slots;
  };

  static bool is_hashed(const EdgeList& list) { return list.block_class > kMaxDenseClass; }
  const Edge* begin(const EdgeList& list) const {
    return slots_[list.block_class] + (std::size_t{list.block} << (list.block_class - 1));
  }
  Edge* begin(const EdgeList& list) { return const_cast<Edge*>(std::as_const(*this).begin(list)); }
  // Header of a hashed block: `token` holds the number of edges, `target` the rival bound.
  Edge& header(const EdgeList& list) { return *begin(list); }

  const Edge* find_slot(const EdgeList& list, std::int32_t token) const;
  void put(EdgeList& list, std::int32_t token, StateId target);
  void take(EdgeList& list, std::size_t slot);
  std::size_t erase_dense(EdgeList& list, std::size_t slot);
  void erase_hashed(EdgeList& list, std::size_t slot);
  void resize(EdgeList& list, std::uint32_t block_class);
  void move(const EdgeList& from, EdgeList& to);
  std::uint32_t allocate(std::uint32_t block_class);
  void deallocate(std::uint32_t block, std::uint32_t block_class);

  std::array<Edge*, kMaxClass + 1>
      slots_{};              // per class, slabs_[class - 1].slots.data(), which saves look-ups a step
  std::vector<Slab> slabs_;  // slabs_[k - 1] holds class k
};

template <typename Visit>
void EdgePool::for_each(const EdgeList& list, Visit visit) const {
  if (list.is_empty()) return;
  visit(Edge{list.best_token, list.best_target});
  if (list.block_class == 0) return;
  const Edge* slots = begin(list);
  for (std::size_t i = is_hashed(list) ? 1 : 0; i < block_slots(list); ++i) {
    if (slots[i].token != kNoToken) visit(slots[i]);
  }
}

template <typename Visit>
void EdgePool::for_each_target(EdgeList& list, Visit visit) {
  if (list.is_empty()) return;
  visit(list.best_target);
  if (list.block_class == 0) return;
  Edge* slots = begin(list);
  for (std::size_t i = is_hashed(list) ? 1 : 0; i < block_slots(list); ++i) {
    if (slots[i].token != kNoToken) visit(slots[i].target);
  }
}

}  // namespace agentspec
