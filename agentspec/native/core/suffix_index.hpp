// One suffix index: an automaton, the sequences in it, and a byte budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/automaton.hpp"

namespace agentspec {

/// Names a sequence of one index; never reused.
using SequenceId = std::uint64_t;

/// Sequences are live (open to appends) or finished. When the budget is exceeded, the sequence that was
/// finished first goes first; if only live ones are left, the longest is no longer learned. Not thread-safe.
class SuffixIndex {
 public:
  static constexpr std::size_t kUnlimited = ~std::size_t{0};

  /// Throws ConfigError if depth is not within 2..Automaton::kMaxDepth.
  SuffixIndex(std::uint32_t depth, std::size_t limit_bytes);

  /// Starts an empty live sequence. O(1) amortized. Throws CapacityError.
  SequenceId open();
  /// Appends tokens (none negative) to a live sequence, then enforces the budget. False if the sequence is
  /// not learned any more. O(tokens * chain) plus what has to be evicted. Throws UnknownIdError.
  bool append(SequenceId id, std::span<const std::int32_t> tokens);
  /// Finishes a live sequence: it stays until evicted. O(1). Throws UnknownIdError.
  void close(SequenceId id);
  /// Takes a live or finished sequence out again. O(tokens * chain). Throws UnknownIdError.
  void remove(SequenceId id);
  /// Removes everything; live sequences are not learned any more. O(states).
  void clear();
  /// Evicts until the index takes no more than `limit_bytes`, as far as the empty index does not.
  void enforce(std::size_t limit_bytes);

  bool is_known(SequenceId id) const;
  /// The last min(n, depth - 1) tokens of a live, learned sequence as a context.
  Cursor tail(SequenceId id) const;
  bool is_learned(SequenceId id) const;
  /// The whole sequence; empty if it is not learned any more.
  std::span<const std::int32_t> text(SequenceId id) const;
  /// The longest suffix of `tokens`, at most depth - 1 of them, that occurs. O(min(tokens, depth)) amortized.
  Cursor match(std::span<const std::int32_t> tokens) const;
  /// Occurrences of the string. O(length). Throws TokenError if it is longer than depth.
  std::uint32_t count(std::span<const std::int32_t> tokens) const;

  const Automaton& automaton() const { return automaton_; }
  /// Changes with every write.
  std::uint64_t version() const { return version_; }
  std::size_t num_sequences() const { return num_live_ + num_finished_; }
  std::size_t num_tokens() const { return num_tokens_; }
  /// Bytes allocated; O(1).
  std::size_t memory_bytes() const;
  /// Of these, the bytes in use; the rest waits in free lists; O(1).
  std::size_t used_bytes() const;
  /// Throws IntegrityError. O(tokens * chain).
  void check_integrity() const;

 private:
  enum class Status : std::uint8_t {
    kFree,
    kLive,
    kMuted,
    kFinished
  };  // muted: live, but not learned any more
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  struct Sequence {
    PodArray<std::int32_t> text;   // empty unless live or finished
    Cursor tail;                   // of the text; settled when used
    std::uint32_t generation = 0;  // upper half of the id; counts the uses of this slot
    std::uint32_t older = kNone;   // finished sequences form a list, oldest first
    std::uint32_t newer = kNone;   // (of a free slot: the next free slot)
    Status status = Status::kFree;
  };

  std::uint32_t slot_of(SequenceId id) const;
  void withdraw(Sequence& sequence);
  void release(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  bool evict_one();
  std::uint32_t longest_live() const;
  void compact();

  Automaton automaton_;
  std::size_t limit_bytes_;
  std::vector<Sequence> sequences_;
  std::uint32_t free_slot_ = kNone;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::size_t num_live_ = 0;  // live and muted
  std::size_t num_finished_ = 0;
  std::size_t num_tokens_ = 0;  // sum of the texts' sizes
  std::size_t text_bytes_ = 0;  // sum of the texts' capacities
  std::uint64_t version_ = 0;
};

}  // namespace agentspec
