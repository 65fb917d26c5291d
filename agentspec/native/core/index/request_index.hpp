// The index of one live request: its prompt and output as one sequence, and its predicted output as another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/index/automaton.hpp"

namespace agentspec {

/// An index without removal. It is freed as a whole, so it keeps no text. Not thread-safe.
class RequestIndex {
 public:
  explicit RequestIndex(std::uint32_t depth) : automaton_(depth) {}

  /// Starts another sequence for the next append(). O(1).
  void begin_sequence() { tail_ = {}; }
  /// Appends to the current sequence. O(tokens * chain). Throws std::bad_alloc or CapacityError; the index is
  /// unusable afterwards.
  void append(std::span<const std::int32_t> tokens) {
    const Cursor tail = automaton_.settle(tail_);
    automaton_.unmark_end(tail);
    tail_ = automaton_.append(tail, tokens);
    automaton_.mark_end(tail_);
  }

  const Automaton& automaton() const { return automaton_; }
  /// The last min(n, depth - 1) tokens of the current sequence.
  Cursor tail() const { return automaton_.settle(tail_); }
  /// Prefetches the object itself, not the memory it points to.
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
