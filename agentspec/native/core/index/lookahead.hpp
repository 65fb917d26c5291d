// Prefetches the memory that appends and drafts are about to touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/index/automaton.hpp"

namespace agentspec {

/// An append or a draft follows pointers from state to state, and in a large index each one is a cache miss.
/// Requests are independent, so their walks are first tried in parallel, and their cache misses overlap. The
/// real walks then find their data in the caches. This changes no data, and a wrong guess costs only time.
/// Walks for which memory runs out are skipped. O(rounds) per walk.
class Lookahead {
 public:
  /// Number of walks at a time that keeps the memory busy without evicting one another from the nearest
  /// cache.
  static constexpr std::size_t kWalks = 8;

  /// Adds the walk of tokens that will be appended after `tail`.
  void add_append(const Automaton& automaton, Cursor tail, std::span<const std::int32_t> tokens) noexcept;
  /// Adds the walk of tokens that will continue a match.
  void add_match(const Automaton& automaton, Cursor match, std::span<const std::int32_t> tokens) noexcept;
  /// Adds the walk of a draft that will start at `match`.
  void add_draft(const Automaton& automaton, Cursor match) noexcept;
  /// Tries all added walks, then removes them.
  void run() noexcept;

 private:
  enum class Kind : std::uint8_t { kAppend, kMatch, kDraft };
  struct Walk {
    const Automaton* automaton;
    StateId state;
    std::span<const std::int32_t> tokens;  // remaining tokens; empty for a draft
    Kind kind;
  };
  struct Chain {  // of shorter and shorter suffixes
    const Automaton* automaton;
    StateId state;
  };

  void add_walk(const Automaton& automaton, Cursor begin, std::span<const std::int32_t> tokens,
                Kind kind) noexcept;
  bool step(Walk& walk);

  std::vector<Walk> walks_;
  std::vector<Chain> chains_;
};

}  // namespace agentspec
