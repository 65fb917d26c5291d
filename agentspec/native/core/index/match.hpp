// The match of a growing context in an automaton, and the prefetching of what appends and drafts will read.
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

/// A match that is carried from step to step instead of searched anew. New tokens advance it, but other
/// writers' appends may have created a longer match. A longer one would begin with the token before the
/// match. The match therefore keeps a witness: how far the string that begins there occurs. While the witness
/// can't be continued, no longer match exists. This check costs one look-up.
class Match {
 public:
  /// Returns the match of the whole `context`, in which `num_new` tokens are new since the last call.
  /// `context` may be cut at the front, to no less than depth - 1 tokens. `known` is any suffix of it that
  /// occurs, as a settled cursor. O(num_new) look-ups amortized; O(match) if the match begins elsewhere than
  /// before or states were freed.
  Cursor follow(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                Cursor known);
  /// Prepares the next follow() to cost one look-up per new token. Call this once the automaton has learned
  /// the context's last tokens (or all that can occur in it: `is_all`), which end at `tail`. New tokens can
  /// only continue a suffix that a token has followed, and the longest such suffix is known here. If it spans
  /// all learned tokens, a longer suffix may also have been followed, so the match is not prepared. O(chain).
  void begin_at(const Automaton& automaton, Cursor tail, bool is_all);
  /// True if begin_at() has prepared the match and the automaton has not changed since.
  bool is_begun(const Automaton& automaton) const { return is_begun_ && version_ == automaton.version(); }
  /// Adds to `lookahead` the look-ups that follow() will make.
  void look_ahead(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                  Lookahead& lookahead) const noexcept;
  /// The match as of the last follow() or begin_at().
  Cursor longest() const { return longest_; }

 private:
  bool begins_anew(const Automaton& automaton, std::span<const std::int32_t> context,
                   std::size_t num_new) const;
  void search(const Automaton& automaton, std::span<const std::int32_t> context, Cursor known);
  void carry_on(const Automaton& automaton, std::span<const std::int32_t> new_tokens, Cursor known);
  bool extend_left(const Automaton& automaton, std::span<const std::int32_t> context);

  Cursor longest_;
  Cursor witness_;  // of the longest prefix that occurs of the string that begins one token before the match
  std::uint64_t generation_ = kNever;  // of the automaton when the cursors were set
  std::uint64_t version_ = kNever;     // of the automaton at begin_at()
  bool is_begun_ = false;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
};

}  // namespace agentspec
