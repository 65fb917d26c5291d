// A pool of numbers for the elements of an array. The lowest free number is used first.
#pragma once

#include <cstdint>

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

}  // namespace agentspec
