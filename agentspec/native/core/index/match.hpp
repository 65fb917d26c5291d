// The longest suffix of a growing context that occurs in an automaton with other writers.
#pragma once

#include <cstdint>
#include <span>

#include "core/index/automaton.hpp"
#include "core/index/lookahead.hpp"

namespace agentspec {

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
