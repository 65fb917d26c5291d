// One suffix index: an automaton, the sequences in it, and a byte budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/index/automaton.hpp"
#include "core/index/text_store.hpp"

namespace agentspec {

/// Names a live sequence of one index.
using SequenceId = std::uint64_t;

/// Outputs end to end: output i is the next sizes[i] of the tokens, and counts uses[i] times.
struct Outputs {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint32_t> uses;
};

/// Sequences are live (open to appends) until they are closed; then they are outputs, which have no names.
/// Near the budget the oldest output loses tokens from its end until it is gone; equal ones are one, as young
/// as the last of them, and go together. If only live sequences are left, the longest is no longer learned
/// and goes next. Not thread-safe.
///
/// Nothing stops for long: each token that is appended has a few states visited, to evict and to close the
/// holes that evictions leave. Should that not be enough, the index learns into the holes of what it evicts,
/// or not at all for a while. If memory runs out, it forgets everything and goes on.
class SuffixIndex {
 public:
  static constexpr std::size_t kUnlimited = ~std::size_t{0};
  /// Callers that must not hold up others append or remove at most so many tokens at once.
  static constexpr std::size_t kPieceTokens = 256;

  /// About so many are read at once.
  static constexpr std::size_t kReadTokens = std::size_t{1} << 14;

  /// An output counts as so many equal ones at most.
  static constexpr std::uint32_t kMaxUses = Text::kMaxUses;

  /// Work that is hardly felt: to visit so many states takes about a millisecond.
  static constexpr std::size_t kMostWork = 8192;

  /// Throws ConfigError if depth is not within 2..Automaton::kMaxDepth.
  SuffixIndex(std::uint32_t depth, std::size_t limit_bytes);

  /// Throws ConfigError if no sequence can count so much.
  static void check_uses(std::uint32_t uses);
  /// Starts an empty live sequence, which counts as `uses` (1..kMaxUses) equal ones; not learned if there are
  /// too many already. O(1) amortized. Throws std::bad_alloc, unchanged.
  SequenceId open(std::uint32_t uses = 1);
  /// Appends tokens (none negative) to a live sequence; uphold() has to follow. False if the sequence is not
  /// learned any more. O(tokens * chain). Throws UnknownIdError.
  bool append(SequenceId id, std::span<const std::int32_t> tokens);
  /// Enforces the budget after `num_changed` tokens were appended or removed. O(num_changed * chain), and
  /// no more than kMostWork unless the budget is tiny.
  void uphold(std::size_t num_changed);
  /// Makes room towards a budget of `limit_bytes`: in proportion to num_changed, but hardly more than
  /// max_work. Returns the work done, in states visited.
  std::size_t approach(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work);
  /// Whether so many tokens, if appended next, will mostly go into holes, so that memory hardly grows. O(1).
  bool has_holes(std::size_t num_tokens) const;
  /// Evicts until it is so, but hardly more than twice as many tokens. Returns the work done, in states
  /// visited.
  std::size_t make_holes(std::size_t num_tokens);
  /// Finishes a live sequence: what was learned of it stays until evicted. O(tokens), to pack them. Throws
  /// UnknownIdError.
  void close(SequenceId id);
  /// Stops learning a live sequence; what was learned of it goes first. O(tokens). Throws UnknownIdError.
  void stop(SequenceId id);
  /// Takes a live sequence out again. O(tokens * chain). Throws UnknownIdError.
  void remove(SequenceId id);
  /// Takes some tokens from the end of a live sequence, which is not learned any more; true once it is gone.
  /// O(kPieceTokens * chain). Throws UnknownIdError.
  bool remove_piece(SequenceId id);
  /// Evicts at least so many tokens, or all there are; returns how many. O(tokens * chain).
  std::size_t evict(std::size_t num_tokens);
  /// Begins to read the outputs, the oldest first, instead of any earlier reading.
  void begin_reading() { texts_.begin_reading(); }
  /// Adds outputs that were not read yet until there are none, or kReadTokens were read. Between the calls
  /// anything may change: an output that stays is read once, with the uses it has then. O(tokens). Throws
  /// std::bad_alloc.
  void read(Outputs& outputs);
  /// Removes everything; live sequences are not learned any more. O(states + outputs). Takes no memory.
  void clear() noexcept;
  /// Evicts and closes holes until the index takes no more than `limit_bytes`, as far as the empty index does
  /// not. O(states).
  void enforce(std::size_t limit_bytes);

  bool is_live(SequenceId id) const;
  /// The last min(n, depth - 1) tokens of a live, learned sequence as a context.
  Cursor tail(SequenceId id) const { return automaton_.settle(live_[slot_of(id)].tail); }
  bool is_learned(SequenceId id) const { return is_live(id) && live_[slot_of(id)].is_learned; }
  /// The longest suffix of `tokens` (none negative), at most depth - 1 of them, that occurs.
  /// O(min(tokens, depth)) amortized.
  Cursor match(std::span<const std::int32_t> tokens) const;
  /// Occurrences of the string, no token negative. O(length). Throws TokenError if it is longer than depth.
  std::uint32_t count(std::span<const std::int32_t> tokens) const;

  const Automaton& automaton() const { return automaton_; }
  /// Live ones, and outputs of which anything is left.
  std::size_t num_sequences() const { return num_sequences_; }
  /// Their tokens, as far as they are learned.
  std::size_t num_tokens() const { return num_tokens_; }
  /// Bytes that can be resident; O(1).
  std::size_t memory_bytes() const;
  /// Of these, the bytes in use; the rest waits to be used again or returned; O(1).
  std::size_t used_bytes() const;
  /// Throws IntegrityError. O(tokens * chain).
  void check_integrity() const;

 private:
  static constexpr std::size_t kWorkPerToken = 3;    // to evict one; usual
  static constexpr std::size_t kWorkPerPiece = 16;   // what does not depend on its size
  static constexpr std::size_t kWorkPerMove = 4;     // of a text
  static constexpr std::size_t kReadPerText = 16;    // tokens that are read in the time it takes to find one
  static constexpr std::size_t kBytesPerToken = 64;  // hardly any text takes more
  static constexpr std::size_t kMaxTokens = 0xFFFFFFFFu;

  struct Live {
    Cursor tail;               // if it is learned; settled when used
    std::uint32_t serial = 0;  // upper half of the id
    std::uint16_t uses = 1;
    bool is_learned = false;
    bool has_rest = false;        // of what was learned before it was stopped: a text that it owns
    PodArray<std::int32_t> text;  // if it is learned
  };

  template <typename Change>
  bool change_or_clear(Change change);
  std::uint32_t slot_of(SequenceId id) const;
  std::size_t num_live() const noexcept;
  bool has_room(std::size_t num_tokens, std::uint32_t uses);
  void learn(Live& live, std::span<const std::int32_t> tokens);
  void stop_learning(std::uint32_t slot);
  void release_text(Live& live) noexcept;
  void release(std::uint32_t slot) noexcept;
  std::size_t retract_piece(Text& text);
  std::size_t evict_piece();
  bool stop_longest();
  std::size_t evict_some(std::size_t max_work, std::size_t target_bytes);
  std::size_t evict_and_compact(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work);
  std::size_t hole_bytes() const { return automaton_.extent_bytes() - automaton_.used_bytes(); }
  bool needs_compaction(std::size_t limit_bytes) const;
  void compact_some(std::size_t num_states);

  Automaton automaton_;
  std::size_t limit_bytes_;
  IdPool slots_;  // of live_
  std::vector<Live> live_;
  TextStore texts_;  // of the outputs, and what is left of live sequences that are not learned any more
  std::uint32_t num_opened_ = 0;
  std::size_t num_sequences_ = 0;
  std::size_t num_tokens_ = 0;
  std::size_t live_text_bytes_ = 0;  // memory of the live texts
};

}  // namespace agentspec
