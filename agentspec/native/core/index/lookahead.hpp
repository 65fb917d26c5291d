// Brings into the caches what appends and drafts are about to touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/index/automaton.hpp"

namespace agentspec {

/// An append or a draft follows pointers from state to state, and in a large index each is a wait for memory.
/// Requests don't depend on one another, so their walks are tried side by side first: while one waits, the
/// others go on, and the real walks find everything in place. Nothing is changed, and a wrong guess costs
/// nothing but time; what there is no memory for is not looked ahead to. O(rounds) per walk.
class Lookahead {
 public:
  /// So many walks at a time keep the memory busy without pushing one another out of the nearest cache.
  static constexpr std::size_t kWalks = 8;

  /// Tokens that will be appended behind `tail`.
  void add_append(const Automaton& automaton, Cursor tail, std::span<const std::int32_t> tokens) noexcept;
  /// Tokens that a match will be carried on by.
  void add_match(const Automaton& automaton, Cursor match, std::span<const std::int32_t> tokens) noexcept;
  /// A draft that will be looked for at `match`.
  void add_draft(const Automaton& automaton, Cursor match) noexcept;
  /// Tries all walks that were added, and forgets them.
  void run() noexcept;

 private:
  enum class Kind : std::uint8_t { kAppend, kMatch, kDraft };
  struct Walk {
    const Automaton* automaton;
    StateId state;
    std::span<const std::int32_t> tokens;  // still to come; of a draft none
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
