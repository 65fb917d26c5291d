// A suffix automaton of all substrings of many sequences, up to a depth, with occurrence counts.
//
// A state stands for a set of strings that end at the same positions. They are the suffixes of its longest
// string, down to a certain length. The suffix link leads to the state of the next shorter suffix. Only
// strings of at most `depth` tokens are kept, so an appended token touches at most `depth` states. A context
// is a string for which continuations are looked up. It has at most depth - 1 tokens.
//
// States without occurrences leave holes, which new states fill. compact_some() closes the remaining holes, a
// few states per call. First the highest states move into the lowest holes and leave their new number behind.
// Then all references are corrected. Last, the array is cut. Until then every reference is read through
// resolve().
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/index/edge_pool.hpp"
#include "core/pod_array.hpp"

namespace agentspec {

constexpr StateId kRoot = 0;

/// Where a sequence was written. A string that came from several places has the smallest of these values.
enum class Origin : std::uint8_t {
  kLocal,     // by this engine
  kFleet,     // by another engine, learned from it directly
  kSnapshot,  // by another engine, learned from a snapshot
};
constexpr std::size_t kNumOrigins = 3;

struct State {
  std::uint32_t length : 9 = 0;  // of the longest string; above the link's length (0: root, free or moved)
  std::uint32_t origin : 2 = 3;  // of its strings, ever; 3: root, free or moved
  std::uint32_t ends : 21 = 0;   // sequences that end with this state's strings; unused if full_depth_only()
  StateId link = kNoState;  // state of the longest suffix with more occurrences; new number of a moved state
  std::uint32_t count = 0;  // occurrences of each of its strings; 0: root, free or moved
  EdgeList edges;           // the best edge leads to the state of highest count
};
static_assert(sizeof(State) == 24);

/// The state of a string, and the string's length: link's length < length <= state's length.
struct Cursor {
  StateId state = kRoot;
  std::uint32_t length = 0;
};

class Automaton {
 public:
  static constexpr std::uint32_t kMaxDepth = (1u << 9) - 1;
  static constexpr std::uint32_t kMaxEnds = (1u << 21) - 1;

  /// Counts strings of up to `depth` tokens. Throws ConfigError unless depth is within 2..kMaxDepth.
  explicit Automaton(std::uint32_t depth);

  std::uint32_t depth() const { return depth_; }
  std::uint32_t count(StateId id) const { return states_[id].count; }
  std::uint32_t length(StateId id) const { return states_[id].length; }
  Origin origin(StateId id) const { return static_cast<Origin>(states_[id].origin); }
  StateId link(StateId id) const { return resolve(states_[id].link); }
  std::int32_t best_token(StateId id) const { return states_[id].edges.best_token; }
  StateId best_target(StateId id) const { return resolve(states_[id].edges.best_target); }
  StateId child(StateId id, std::int32_t token) const {
    const StateId* target = edges_.find(states_[id].edges, token);
    return target == nullptr ? kNoState : resolve(*target);
  }
  /// Calls visit(token, child) for every edge, the best one first. O(edges).
  template <typename Visit>
  void for_each_child(StateId id, Visit visit) const {
    edges_.for_each(states_[id].edges, [&](const Edge& edge) { visit(edge.token, resolve(edge.target)); });
  }
  /// Number of the state's continuations. O(1).
  std::size_t num_edges(StateId id) const { return edges_.size(states_[id].edges); }
  void prefetch(StateId id) const { __builtin_prefetch(&states_[id]); }
  void prefetch_edges(StateId id) const { edges_.prefetch(states_[id].edges); }
  void prefetch_edge(StateId id, std::int32_t token) const { edges_.prefetch(states_[id].edges, token); }

  /// Occurrences of the state's strings that a token follows: the sum of its children's counts.
  std::uint32_t num_continued(StateId id) const { return states_[id].count - states_[id].ends; }
  /// The state with the edges that continue `id`'s strings. At full depth the oldest token is dropped first.
  StateId context_of(StateId id) const {
    const bool has_edges = !states_[id].edges.is_empty();  // known without a look at the link
    return !has_edges && full_depth_only(id) ? link(id) : id;
  }
  /// Updates a cursor after later appends have split its state or compaction has moved it. O(1).
  Cursor settle(Cursor cursor) const;
  /// Returns the longest suffix of the cursor's string that a token has followed.
  Cursor fall_back(Cursor cursor) const;
  /// Returns the longest suffix of (cursor's string + token) that occurs, as a context. Amortized O(1).
  Cursor advance(Cursor cursor, std::int32_t token) const;
  /// Returns the cursor's string plus one token, as a context; `next` is the child that the token leads to.
  Cursor follow(Cursor cursor, StateId next) const;
  /// Returns the state of a string, or kNoState if it does not occur or is longer than depth. O(length).
  StateId locate(std::span<const std::int32_t> tokens) const;

  /// Appends tokens to equal sequences of n tokens and returns their new tail. `tail` is their last
  /// min(n, depth - 1) tokens. Counts every new occurrence. Among continuations of equal count the one
  /// appended last is the best. O(suffix-link chain) <= O(depth) a token; about five states on real text.
  /// Throws CapacityError or std::bad_alloc; the automaton is then unusable until it is cleared.
  Cursor append(Cursor tail, std::span<const std::int32_t> tokens, std::uint32_t sequences = 1,
                Origin origin = Origin::kLocal);
  /// Adds sequence ends to the states on the tail's chain, or removes them. O(chain).
  void mark_end(Cursor tail, std::uint32_t sequences = 1);
  void unmark_end(Cursor tail, std::uint32_t sequences = 1);
  /// Removes the last tokens of equal sequences. `tokens` are these tokens and `begin` is the tail before
  /// them. The sequences then end at `begin`. Returns the number of states visited. Frees states without
  /// occurrences. Where a best continuation lost occurrences, the highest count becomes the best, then the
  /// smaller token id. States that only the removed occurrences distinguished are not merged again. Counts
  /// stay exact, but the automaton is not minimal. O(tokens * chain). Throws std::bad_alloc; the automaton is
  /// then unusable until it is cleared.
  std::size_t retract(Cursor begin, std::span<const std::int32_t> tokens, std::uint32_t sequences = 1);
  /// Removes everything, including the remains of a call that threw. Allocates no memory.
  void clear() noexcept;

  /// True if closing the holes would return a fifth of the memory.
  bool is_fragmented() const;
  bool is_compacting() const { return phase_ != Phase::kIdle; }
  /// Visits up to `num_states` states to close holes. Calls settle_cursors once per compaction, which must
  /// settle() every cursor that has to stay valid. O(num_states * edges).
  void compact_some(std::size_t num_states, const std::function<void()>& settle_cursors);
  /// Returns the memory beyond the arrays' ends. O(states) for small arrays.
  void trim() {
    states_.shrink_to_fit();
    ids_.trim();
    edges_.trim();
  }
  /// A number that changes when unsettled cursors may have become invalid.
  std::uint64_t generation() const { return generation_; }
  /// A number that changes with every modification.
  std::uint64_t version() const { return version_; }

  std::size_t num_states() const { return ids_.num_used() - num_moved_; }
  /// Bytes of the states and edges in use; of the arrays up to the last of them; of all memory.
  std::size_t used_bytes() const { return num_states() * sizeof(State) + edges_.used_bytes(); }
  std::size_t extent_bytes() const { return ids_.end() * sizeof(State) + edges_.extent_bytes(); }
  std::size_t memory_bytes() const {
    return states_.memory_bytes() + ids_.memory_bytes() + edges_.memory_bytes();
  }

  /// Bytes of the block that the root's edges, the longest list, would need for `num_tokens` new tokens; 0 if
  /// they fit.
  std::size_t growth_bytes(std::size_t num_tokens) const {
    return edges_.growth_bytes(states_[kRoot].edges, num_tokens);
  }

  /// Checks the invariants that need no sequences. Throws IntegrityError. O(states + edges).
  void check_structure() const;
  /// Recounts everything from the sequences and checks every invariant. Throws IntegrityError.
  /// O(tokens * chain + edges).
  void check_integrity(std::span<const std::span<const std::int32_t>> sequences,
                       std::span<const Cursor> tails) const;

 private:
  enum class Phase : std::uint8_t { kIdle, kMove, kCorrect, kCut };
  struct Occurrences {
    std::uint32_t count;
    std::uint32_t origin;
  };

  // True if the state holds a single string, of depth tokens. Longer ones are not kept, so it has no edges.
  bool full_depth_only(StateId id) const {
    return states_[id].length == depth_ && states_[link(id)].length == depth_ - 1;
  }
  // The present number of the state that was referred to as `id`.
  StateId resolve(StateId id) const { return id <= last_unmoved_ ? id : moved_to(id); }
  StateId moved_to(StateId id) const {
    return id != kNoState && states_[id].length == 0 ? states_[id].link : id;
  }
  Cursor extend(Cursor tail, std::int32_t token, std::int32_t next, const Occurrences& occurrences);
  StateId allocate(std::uint32_t length);
  void free(StateId id);
  StateId grow(Cursor tail, std::int32_t token);
  StateId split_if_longer(StateId prefix, std::uint32_t length, std::int32_t token, StateId target);
  bool retarget(StateId prefix, std::int32_t token, StateId from, StateId to);
  void count_occurrences(Cursor tail, std::int32_t token, StateId target, std::int32_t next,
                         const Occurrences& occurrences);
  void count_in(StateId id, std::int32_t next, const Occurrences& occurrences);
  void bump_best(StateId prefix, std::int32_t token, StateId target);
  std::size_t discount(Cursor tail, std::int32_t token, StateId target, std::uint32_t occurrences);
  void drop(StateId id, std::uint32_t occurrences);
  void demote_best(StateId prefix, std::int32_t token, StateId target);
  void refresh_best(StateId id);
  void free_dead();
  void begin_moving();
  void move_one();
  void correct(StateId id);
  void cut_one();
  void check_states() const;
  void check_edges(StateId id) const;
  void check_accounting() const;

  std::uint32_t depth_;
  IdPool ids_;              // which states are in use
  PodArray<State> states_;  // states_[0] is the root; its count and best edge have no meaning
  EdgePool edges_;

  Phase phase_ = Phase::kIdle;       // of the compaction
  StateId next_ = 0;                 // the state it visits next
  StateId last_unmoved_ = kNoState;  // references up to this number are current
  std::size_t num_moved_ = 0;        // states in use that only hold the new number of a moved one
  std::uint64_t generation_ = 0;
  std::uint64_t version_ = 0;
};

}  // namespace agentspec
