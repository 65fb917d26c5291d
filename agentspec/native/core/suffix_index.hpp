// One suffix index: an automaton, the sequences in it, and a byte budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/automaton.hpp"
#include "core/text_store.hpp"

namespace agentspec {

/// Names a sequence of one index; never reused.
using SequenceId = std::uint64_t;

/// Sequences are live (open to appends) or finished. When the budget is exceeded, the sequence that was
/// finished first loses tokens from its end until it is gone; if only live ones are left, the longest is no
/// longer learned and goes next. Not thread-safe.
///
/// Nothing stops for long: uphold() evicts a few tokens for each that was added, and visits a few states to
/// close the holes that evictions leave. If memory runs out, whatever for, the index forgets everything and
/// goes on: only open() throws, and changes nothing then.
class SuffixIndex {
 public:
  static constexpr std::size_t kUnlimited = ~std::size_t{0};
  /// Callers that must not hold up others append or remove at most so many tokens at once.
  static constexpr std::size_t kPieceTokens = 256;

  /// Work that is hardly felt: to visit so many states, or evict a third as many tokens, takes about a
  /// millisecond.
  static constexpr std::size_t kMostWork = 8192;

  /// Throws ConfigError if depth is not within 2..Automaton::kMaxDepth.
  SuffixIndex(std::uint32_t depth, std::size_t limit_bytes);

  /// Starts an empty live sequence. O(1) amortized. Throws CapacityError or std::bad_alloc.
  SequenceId open();
  /// Appends tokens (none negative) to a live sequence; uphold() has to follow. False if the sequence is not
  /// learned any more. O(tokens * chain). Throws UnknownIdError.
  bool append(SequenceId id, std::span<const std::int32_t> tokens);
  /// Enforces the budget after `num_changed` tokens were appended or removed. O(num_changed * chain), and
  /// never more than about a millisecond unless the budget is tiny.
  void uphold(std::size_t num_changed);
  /// Makes room towards a budget of `limit_bytes`: in proportion to num_changed, but no more than max_work.
  /// Returns the work done, in states visited.
  std::size_t approach(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work);
  /// Evicts, a few tokens for each that is to be appended, until those will mostly go into holes, so that
  /// memory hardly grows. False if that is not enough. O(num_tokens * chain).
  bool make_holes(std::size_t num_tokens);
  /// Finishes a live sequence: it stays until evicted. O(tokens), to pack them. Throws UnknownIdError.
  void close(SequenceId id);
  /// Stops learning a live sequence; what was learned of it goes first. O(tokens). Throws UnknownIdError.
  void stop(SequenceId id);
  /// Takes a live or finished sequence out again. O(tokens * chain). Throws UnknownIdError.
  void remove(SequenceId id);
  /// Takes at most kPieceTokens from the end of a sequence, which is not learned any more; true once it is
  /// gone. O(chain). Throws UnknownIdError.
  bool remove_piece(SequenceId id);
  /// Removes everything; live sequences are not learned any more. Takes no memory. O(states).
  void clear() noexcept;
  /// Evicts and closes holes until the index takes no more than `limit_bytes`, as far as the empty index does
  /// not. O(states).
  void enforce(std::size_t limit_bytes);

  bool is_known(SequenceId id) const;
  /// The last min(n, depth - 1) tokens of a live, learned sequence as a context.
  Cursor tail(SequenceId id) const { return automaton_.settle(sequences_[slot_of(id)].tail); }
  bool is_learned(SequenceId id) const;
  /// The longest suffix of `tokens`, at most depth - 1 of them, that occurs. O(min(tokens, depth)) amortized.
  Cursor match(std::span<const std::int32_t> tokens) const;
  /// Occurrences of the string. O(length). Throws TokenError if it is longer than depth.
  std::uint32_t count(std::span<const std::int32_t> tokens) const;

  const Automaton& automaton() const { return automaton_; }
  std::size_t num_sequences() const { return slots_.num_used(); }
  std::size_t num_tokens() const { return num_tokens_; }
  /// Bytes that can be resident; O(1).
  std::size_t memory_bytes() const;
  /// Of these, the bytes in use; the rest waits to be used again or returned; O(1).
  std::size_t used_bytes() const;
  /// Throws IntegrityError. O(tokens * chain).
  void check_integrity() const;

 private:
  static constexpr std::size_t kWorkPerToken = 3;    // to evict one
  static constexpr std::size_t kBytesPerToken = 64;  // hardly any text takes more
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  enum class Status : std::uint8_t { kLive, kMuted, kFinished };  // muted: live, but not learned any more

  struct Sequence {
    Cursor tail;                  // of a live text; settled when used
    std::uint32_t size = 0;       // tokens that are in the automaton
    std::uint32_t text = kNone;   // live: in live_texts_; else in texts_, as long as size > 0
    std::uint32_t serial = 0;     // upper half of the id
    std::uint32_t older = kNone;  // what is not live and has tokens forms a list, first to go first
    std::uint32_t newer = kNone;
    Status status = Status::kLive;
  };

  std::uint32_t slot_of(SequenceId id) const;
  template <typename Change>
  bool change_or_clear(Change change);
  void learn(Sequence& sequence, std::span<const std::int32_t> tokens);
  void mute(std::uint32_t slot);
  void store(std::uint32_t slot);
  void retract_piece(std::uint32_t slot);
  std::span<const std::int32_t> end_of(const Sequence& sequence, std::size_t num_tokens);
  void release(std::uint32_t slot);
  void link_newest(std::uint32_t slot);
  void link_oldest(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  std::size_t evict_and_compact(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work);
  bool evict_piece();
  bool mute_longest();
  std::size_t evict_some(std::size_t num_tokens, std::size_t target_bytes);
  std::size_t hole_bytes() const { return automaton_.extent_bytes() - automaton_.used_bytes(); }
  bool needs_compaction(std::size_t limit_bytes) const;
  void compact_some(std::size_t num_states);
  void trim();

  Automaton automaton_;
  std::size_t limit_bytes_;
  IdPool slots_;
  PodArray<Sequence> sequences_;
  TextStore texts_;  // of the sequences that are not live
  std::vector<PodArray<std::int32_t>> live_texts_;
  std::vector<std::uint32_t> free_live_texts_;
  std::vector<std::int32_t> piece_;  // scratch: the end of a stored text
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::uint32_t num_opened_ = 0;
  std::size_t num_tokens_ = 0;       // sum of the sequences' sizes
  std::size_t live_text_bytes_ = 0;  // memory of live_texts_' arrays
};

}  // namespace agentspec
