// The longest suffix of a growing context that occurs in an automaton that others write to.
#pragma once

#include <cstdint>
#include <span>

#include "core/index/automaton.hpp"
#include "core/index/lookahead.hpp"

namespace agentspec {

/// Carries the match on instead of searching it anew at every step. New tokens move it along; but what others
/// appended meanwhile may have made a longer match. A longer one would begin with the token before the match,
/// so the match keeps a witness: how far the string that begins there occurs. As long as the witness can't be
/// continued, there is no longer match, and this costs one look-up to know.
class Match {
 public:
  /// The match of the whole `context`, of which `num_new` tokens are new since the last call. `context` may
  /// be cut at the front, to no less than depth - 1 tokens. `known` is any suffix of it that occurs, as a
  /// settled cursor. O(num_new) look-ups amortized; O(match) when the match begins elsewhere than before or
  /// states were freed.
  Cursor follow(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                Cursor known);
  /// To be called once the automaton has learned the context's last tokens (or all of it: `is_all`), which
  /// end at `tail`: the next follow() then costs a look-up per new token. For what comes can only continue
  /// what something has followed, and the longest such suffix is known here. Unless that is all that was
  /// learned: together with what is before, it may have been followed as well, so nothing is begun. O(chain).
  void begin_at(const Automaton& automaton, Cursor tail, bool is_all);
  /// Whether begin_at() has told where to go on, and nothing has changed since.
  bool is_begun(const Automaton& automaton) const { return is_begun_ && version_ == automaton.version(); }
  /// Adds the look-ups that follow() will make.
  void look_ahead(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                  Lookahead& lookahead) const noexcept;
  /// What follow() returned last.
  Cursor longest() const { return longest_; }

 private:
  bool begins_anew(const Automaton& automaton, std::span<const std::int32_t> context,
                   std::size_t num_new) const;
  void search(const Automaton& automaton, std::span<const std::int32_t> context, Cursor known);
  void carry_on(const Automaton& automaton, std::span<const std::int32_t> new_tokens, Cursor known);
  bool extend_left(const Automaton& automaton, std::span<const std::int32_t> context);

  Cursor longest_;
  Cursor witness_;  // of the longest prefix that occurs of what begins one token before the match
  std::uint64_t generation_ = kNever;  // of the automaton when the cursors were set
  std::uint64_t version_ = kNever;     // likewise
  bool is_begun_ = false;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
};

}  // namespace agentspec
