// The index of one live request: its prompt, continued by its output, and apart from it the predicted output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/index/automaton.hpp"

namespace agentspec {

/// Nothing is ever removed from it: it goes as a whole, so it keeps no text. Not thread-safe.
class RequestIndex {
 public:
  explicit RequestIndex(std::uint32_t depth) : automaton_(depth) {}

  /// The next append() begins another sequence. O(1).
  void begin_sequence() { tail_ = {}; }
  /// O(tokens * chain). Throws std::bad_alloc or CapacityError; the index is of no use afterwards.
  void append(std::span<const std::int32_t> tokens) {
    const Cursor tail = automaton_.settle(tail_);
    automaton_.unmark_end(tail);
    tail_ = automaton_.append(tail, tokens);
    automaton_.mark_end(tail_);
  }

  const Automaton& automaton() const { return automaton_; }
  /// The last min(n, depth - 1) tokens of the current sequence.
  Cursor tail() const { return automaton_.settle(tail_); }
  /// Brings the object itself, not what it points to, into the caches.
  void prefetch() const {
    for (std::size_t i = 0; i < sizeof(*this); i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + i);
    }
  }
  std::size_t memory_bytes() const { return sizeof(*this) + automaton_.memory_bytes(); }

 private:
  Automaton automaton_;
  Cursor tail_;
};

}  // namespace agentspec
