// A byte budget, of a group or of everything, and what fills it.
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
  std::size_t own_bytes = 0;  // of these, in live requests' own indices
  std::size_t num_added = 0;  // tokens, since it was last balanced

  /// From here on the budget is kept by small steps, so that it is never reached.
  std::size_t soft_limit() const { return limit_bytes - limit_bytes / 16; }
  /// From here on only what goes into holes is learned, until there is room again.
  std::size_t last_limit() const { return limit_bytes - limit_bytes / 32; }
};

struct Group : Budget {
  explicit Group(std::size_t limit) : Budget{limit, LargestFirst<Shared>(Shared::kOfGroup)} {}

  Shared* grown = nullptr;  // a list of its indices that tokens were added to since it was last balanced
  bool is_touched = false;  // something has changed since then
  GroupId next_touched = 0;

  /// What the budget of everything is charged with: what a group has beyond its own limit can't be evicted,
  /// and is not taken from the others instead.
  std::size_t charge() const { return std::min(bytes, limit_bytes); }
};

}  // namespace agentspec
