// A suffix automaton of all substrings, up to a depth, of many sequences, with occurrence counts.
//
// A state stands for a set of strings that end at the same positions; the strings of a state are the
// suffixes, down to a certain length, of its longest one. The suffix link leads to the state of the next
// shorter suffix. Only strings of at most `depth` tokens are kept, so an appended token touches at most
// `depth` states. Contexts - strings that are asked for their continuations - have at most depth - 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/edge_pool.hpp"
#include "core/pod_array.hpp"

namespace agentspec {

constexpr StateId kRoot = 0;

struct State {
  std::uint32_t length : 11 = 0;  // of the longest string; more than the link's length (0 only at the root)
  std::uint32_t ends : 21 = 0;    // sequences that end with this state's strings; unused at full_depth_only()
  StateId link = kNoState;        // state of the longest suffix with more occurrences; free states: next free
  std::uint32_t count = 0;        // occurrences of each of its strings; 0 = free (or the root)
  EdgeList edges;                 // the best edge is the one to the state of highest count
};
static_assert(sizeof(State) == 24);

/// The state of a string, and the string's length: link's length < length <= state's length.
struct Cursor {
  StateId state = kRoot;
  std::uint32_t length = 0;
};

class Automaton {
 public:
  static constexpr std::uint32_t kMaxDepth = (1u << 11) - 1;
  static constexpr std::uint32_t kMaxEnds = (1u << 21) - 1;

  /// `depth`: longest string that is counted, 2..kMaxDepth. Throws ConfigError.
  explicit Automaton(std::uint32_t depth);

  std::uint32_t depth() const { return depth_; }
  const State& state(StateId id) const { return states_[id]; }
  const EdgePool& edges() const { return edges_; }
  StateId child(StateId id, std::int32_t token) const { return edges_.find(states_[id].edges, token); }

  /// Occurrences of the state's strings that something follows: the sum of its children's counts.
  std::uint32_t num_continued(StateId id) const { return states_[id].count - states_[id].ends; }
  /// The state whose edges continue `id`'s strings: at full depth, the oldest token has to go first.
  StateId context_of(StateId id) const { return full_depth_only(id) ? states_[id].link : id; }
  /// Brings a cursor up to date after later appends have split its state. O(1).
  Cursor settle(Cursor cursor) const;
  /// The longest suffix of (cursor's string + token) that occurs, as a context. Amortized O(1).
  Cursor advance(Cursor cursor, std::int32_t token) const;
  /// State of the string, kNoState if it does not occur or is longer than depth. O(length).
  StateId locate(std::span<const std::int32_t> tokens) const;

  /// Appends a token to a sequence whose last min(n, depth - 1) tokens are `tail`; returns the new tail.
  /// Counts every new occurrence. Among continuations of equal count the one appended last is the best.
  /// O(suffix-link chain) <= O(depth); about five states on real text. Throws CapacityError, unchanged.
  Cursor extend(Cursor tail, std::int32_t token);
  /// Tells the states on the tail's chain that a sequence ends here, or no longer does. O(chain).
  void mark_end(Cursor tail);
  void unmark_end(Cursor tail);
  /// Takes one occurrence of the whole sequence out again (its end must be unmarked). States without
  /// occurrences are freed. Where a best continuation lost occurrences, the highest count is the best,
  /// then the smaller token id. States that only the sequence told apart are not merged again: counts
  /// stay exact, the automaton is merely not minimal. O(tokens * chain).
  void retract(std::span<const std::int32_t> tokens);

  /// Moves everything into arrays of exactly the needed size. Returns the new id of each old state
  /// (kNoState: was free). O(states + edges).
  std::vector<StateId> compact();

  std::size_t num_states() const { return states_.size() - num_free_; }
  std::size_t used_bytes() const { return num_states() * sizeof(State) + edges_.used_bytes(); }
  std::size_t capacity_bytes() const { return states_.capacity_bytes() + edges_.capacity_bytes(); }

  /// Recounts everything from the sequences and checks every invariant. Throws IntegrityError.
  /// O(tokens * chain + edges).
  void check_integrity(std::span<const std::span<const std::int32_t>> sequences,
                       std::span<const Cursor> tails) const;

 private:
  // The state holds a single string, of depth tokens: nothing longer is kept, so it has no edges.
  bool full_depth_only(StateId id) const {
    const State& state = states_[id];
    return state.length == depth_ && states_[state.link].length == depth_ - 1;
  }
  StateId allocate(std::uint32_t length);
  void ensure_capacity() const;
  StateId grow(Cursor tail, std::int32_t token);
  StateId split_if_longer(StateId prefix, std::uint32_t length, std::int32_t token, StateId target);
  void count_occurrence(Cursor tail, std::int32_t token, StateId target);
  void favour(StateId prefix, std::int32_t token, StateId target);
  void discount_occurrence(Cursor tail, std::int32_t token, StateId target);
  void drop_occurrence(StateId id);
  void disfavour(StateId prefix, std::int32_t token, StateId target);
  void refresh_best(StateId id);
  void free_dead();
  void check_states() const;
  void check_edges(StateId id) const;
  void check_accounting() const;

  std::uint32_t depth_;
  PodArray<State> states_;  // states_[0] is the root; its count and its choice of a best edge mean nothing
  EdgePool edges_;
  StateId free_ = kNoState;  // list of freed states, through their links
  std::size_t num_free_ = 0;
  std::vector<StateId> dead_;     // during retract(): states that lost their last occurrence
  std::vector<StateId> touched_;  // during retract(): states whose best edge may no longer be the best
};

}  // namespace agentspec
