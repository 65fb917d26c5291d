// One suffix index: an automaton, the sequences in it, and a byte budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/index/automaton.hpp"
#include "core/index/text_store.hpp"

namespace agentspec {

/// The id of a live sequence in one index.
using SequenceId = std::uint64_t;

/// Concatenated outputs: output i takes the next sizes[i] of the tokens and counts uses[i] times.
struct Outputs {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint32_t> uses;
};

/// An index of token sequences within a byte budget. Not thread-safe.
///
/// A sequence is live (open to appends) until it is closed. It then becomes an output, which has no id. Near
/// the budget the oldest output loses tokens from its end until it is empty. Equal outputs are stored once,
/// are as young as the last of them, and are evicted together. If only live sequences are left, the index
/// stops learning the longest one and evicts it next.
///
/// With begin marks, kBeginToken precedes each sequence: it is counted in contexts, but belongs to no text.
///
/// Pauses are short: each appended token makes the index visit a few states, to evict and to close the holes
/// that evictions leave. If that is not enough, the index learns only into the holes of evicted tokens, or
/// stops learning for a while. If memory runs out, it discards everything and continues.
class SuffixIndex {
 public:
  static constexpr std::size_t kUnlimited = ~std::size_t{0};
  /// Most tokens to append or remove in one call by callers that must not delay others.
  static constexpr std::size_t kPieceTokens = 256;

  /// Approximate number of tokens that one read() returns.
  static constexpr std::size_t kReadTokens = std::size_t{1} << 14;

  /// Most equal outputs that one output can count as.
  static constexpr std::uint32_t kMaxUses = Text::kMaxUses;

  /// Number of states that can be visited in about a millisecond.
  static constexpr std::size_t kMostWork = 8192;

  /// Throws ConfigError if depth is not within 2..Automaton::kMaxDepth.
  SuffixIndex(std::uint32_t depth, std::size_t limit_bytes, bool marks_begins = false);

  /// Throws ConfigError unless `uses` is within 1..kMaxUses.
  static void check_uses(std::uint32_t uses);
  /// Starts an empty live sequence that counts as `uses` (1..kMaxUses) equal ones. If there are too many
  /// sequences, a piece of the oldest output is evicted. If that is not enough, the new one is not learned.
  /// O(1) amortized, except for the eviction. Throws std::bad_alloc and changes nothing.
  SequenceId open(std::uint32_t uses = 1, Origin origin = Origin::kLocal);
  /// Appends tokens (none negative) to a live sequence; call enforce_incrementally() afterwards. Returns
  /// false if the sequence is no longer learned. O(tokens * chain). Throws UnknownIdError.
  bool append(SequenceId id, std::span<const std::int32_t> tokens);
  /// Enforces the budget after `num_changed` tokens were appended or removed. Within the budget this visits
  /// O(num_changed * chain) states, about kMostWork at most. An index beyond its budget is enforced in full,
  /// in O(states). That can happen with a budget of about a megabyte or less, or after more than kPieceTokens
  /// tokens in one append.
  void enforce_incrementally(std::size_t num_changed);
  /// Evicts and compacts towards a budget of `limit_bytes`. The work is proportional to num_changed and
  /// hardly exceeds max_work. Returns the work done, in states visited.
  std::size_t shrink_towards(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work);
  /// True if the next `num_tokens` tokens will mostly fill holes, so that memory hardly grows. O(1).
  bool has_holes(std::size_t num_tokens) const;
  /// Evicts until the holes can take `num_tokens` tokens, but hardly more than twice as many. Returns the
  /// work done, in states visited.
  std::size_t make_holes(std::size_t num_tokens);
  /// Finishes a live sequence. Its learned tokens stay until evicted. O(tokens), to pack them. Throws
  /// UnknownIdError.
  void close(SequenceId id);
  /// Stops learning a live sequence. Its learned tokens are evicted first. O(tokens). Throws UnknownIdError.
  void stop(SequenceId id);
  /// Removes a live sequence and its tokens. O(tokens * chain). Throws UnknownIdError.
  void remove(SequenceId id);
  /// Stops learning a live sequence and removes some tokens from its end. Returns true once the sequence is
  /// removed. O(kPieceTokens * chain). Throws UnknownIdError.
  bool remove_piece(SequenceId id);
  /// Removes some tokens of an output that equals `tokens` (not empty), or of the rest of it after
  /// evictions. Live sequences stay. Returns true if there may be more to remove.
  /// O(tokens + kPieceTokens * chain).
  bool forget_piece(std::span<const std::int32_t> tokens);
  /// Evicts at least `num_tokens` tokens, or all if there are fewer. Returns the number evicted.
  /// O(tokens * chain).
  std::size_t evict(std::size_t num_tokens);
  /// Starts reading the outputs, the oldest first. This ends any earlier reading.
  void begin_reading() { texts_.begin_reading(); }
  /// Adds unread outputs to `outputs` until none is left or kReadTokens were read. The index may change
  /// between calls. An output that stays is read once, with its uses at that time. O(tokens). Throws
  /// std::bad_alloc.
  void read(Outputs& outputs);
  /// Removes everything. Live sequences are no longer learned. O(states + outputs). Allocates no memory.
  void clear() noexcept;
  /// Evicts and closes holes until the index takes at most `limit_bytes` or is empty. O(states).
  void enforce(std::size_t limit_bytes);

  bool is_live(SequenceId id) const;
  /// The last min(n, depth - 1) tokens of a live, learned sequence of n tokens, its begin mark included, as a
  /// context.
  Cursor tail(SequenceId id) const { return automaton_.settle(live_[slot_of(id)].tail); }
  bool is_learned(SequenceId id) const { return is_live(id) && live_[slot_of(id)].is_learned; }
  /// Returns the longest suffix of `tokens` that occurs, at most depth - 1 tokens. They may begin with a
  /// mark. O(min(tokens, depth)) amortized.
  Cursor match(std::span<const std::int32_t> tokens) const;
  /// Counts the occurrences of a string (no token negative). O(length). Throws TokenError if it is longer
  /// than depth.
  std::uint32_t count(std::span<const std::int32_t> tokens) const;

  const Automaton& automaton() const { return automaton_; }
  /// Number of live sequences and of outputs with tokens left, each counted `uses` times.
  std::size_t num_sequences() const { return num_sequences_; }
  /// Number of their learned tokens, counted in the same way.
  std::size_t num_tokens() const { return num_tokens_; }
  /// Bytes that can be resident. O(1).
  std::size_t memory_bytes() const;
  /// Number of these bytes in use. The rest can be reused or returned to the system. O(1).
  std::size_t used_bytes() const;
  /// Throws IntegrityError. O(tokens * chain).
  void check_integrity() const;

 private:
  static constexpr std::size_t kWorkPerToken = 3;    // usual work to evict a token
  static constexpr std::size_t kWorkPerPiece = 16;   // the part that does not depend on its size
  static constexpr std::size_t kWorkPerMove = 4;     // of a text
  static constexpr std::size_t kReadPerText = 16;    // time to find a text, in tokens read
  static constexpr std::size_t kBytesPerToken = 64;  // hardly any text takes more
  static constexpr std::size_t kMaxTokens = 0xFFFFFFFFu;

  struct Live {
    Cursor tail;               // if learned; settled when used
    std::uint32_t serial = 0;  // upper half of the id
    std::uint16_t uses = 1;
    Origin origin = Origin::kLocal;
    bool is_learned = false;
    bool has_rest = false;        // a text that it owns holds the tokens learned before learning stopped
    PodArray<std::int32_t> text;  // if learned
  };

  template <typename Change>
  bool change_or_clear(Change change);
  std::uint32_t slot_of(SequenceId id) const;
  std::size_t num_live() const noexcept;
  bool has_room(std::size_t num_tokens, std::uint32_t uses);
  void learn(Live& live, std::span<const std::int32_t> tokens);
  void mark_begin(Live& live);
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
  bool marks_begins_;
  IdPool slots_;  // of live_
  std::vector<Live> live_;
  TextStore texts_;  // outputs, and the remaining tokens of live sequences that are no longer learned
  std::uint32_t num_opened_ = 0;
  std::size_t num_sequences_ = 0;
  std::size_t num_tokens_ = 0;
  std::size_t live_text_bytes_ = 0;  // memory of the live texts
};

}  // namespace agentspec
