// A byte budget, of a group or of everything, and its indices.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/forest/largest_first.hpp"
#include "core/forest/request.hpp"

namespace agentspec {

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

}  // namespace agentspec
