#include "core/index/automaton.hpp"

#include <algorithm>
#include <cassert>
#include <string>

#include "core/error.hpp"

namespace agentspec {
namespace {

// Scratch memory of retract(), one per thread, since few automata are modified at a time.
thread_local std::vector<StateId> dead;     // states that lost their last occurrence
thread_local std::vector<StateId> touched;  // states with a best edge that may no longer be the best

}  // namespace

Automaton::Automaton(std::uint32_t depth) : depth_(depth) {
  if (depth < 2 || depth > kMaxDepth) {
    throw ConfigError("depth must be between 2 and " + std::to_string(kMaxDepth) + ", not " +
                      std::to_string(depth));
  }
  allocate(0);
}

Cursor Automaton::settle(Cursor cursor) const {
  cursor.state = resolve(cursor.state);
  while (cursor.state != kRoot) {
    const StateId shorter = link(cursor.state);
    if (cursor.length > states_[shorter].length) break;
    cursor.state = shorter;
  }
  return cursor;
}

Cursor Automaton::fall_back(Cursor cursor) const {
  while (cursor.state != kRoot && num_continued(cursor.state) == 0) cursor.state = link(cursor.state);
  cursor.length = std::min<std::uint32_t>(cursor.length, states_[cursor.state].length);
  return cursor;
}

Cursor Automaton::advance(Cursor cursor, std::int32_t token) const {
  while (true) {
    const StateId next = child(cursor.state, token);
    if (next != kNoState) return follow(cursor, next);
    if (cursor.state == kRoot) return {};
    cursor.state = link(cursor.state);
    cursor.length = states_[cursor.state].length;
  }
}

StateId Automaton::locate(std::span<const std::int32_t> tokens) const {
  if (tokens.size() > depth_) return kNoState;
  StateId id = kRoot;
  for (const std::int32_t token : tokens) {
    id = child(id, token);
    if (id == kNoState) return kNoState;
  }
  return id;
}

// ---- append -------------------------------------------------------------------------------------------

Cursor Automaton::append(Cursor tail, std::span<const std::int32_t> tokens, std::uint32_t sequences,
                         Origin origin) {
  ++version_;
  const Occurrences each{sequences, static_cast<std::uint32_t>(origin)};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tail = extend(tail, tokens[i], i + 1 < tokens.size() ? tokens[i + 1] : kNoToken, each);
  }
  return tail;
}

Cursor Automaton::extend(Cursor tail, std::int32_t token, std::int32_t next, const Occurrences& occurrences) {
  StateId target = child(tail.state, token);
  target = target == kNoState ? grow(tail, token) : split_if_longer(tail.state, tail.length, token, target);
  count_occurrences(tail, token, target, next, occurrences);
  return follow(tail, target);
}

// An edge leads to the state that holds all of the source's strings with the token appended. Only if the
// oldest token has to be dropped may another state hold the remaining string.
Cursor Automaton::follow(Cursor cursor, StateId next) const {
  if (cursor.length + 1 < depth_) return {next, cursor.length + 1};
  return {context_of(next), depth_ - 1};
}

// Allocates a state for a new string. Adds an edge to every suffix of the tail that had none for this token.
StateId Automaton::grow(Cursor tail, std::int32_t token) {
  const StateId made = allocate(tail.length + 1);
  StateId prefix = tail.state;
  StateId known = kNoState;
  while (prefix != kNoState && (known = child(prefix, token)) == kNoState) {
    edges_.add(states_[prefix].edges, token, made);
    prefix = link(prefix);
  }
  StateId link = kRoot;
  if (prefix != kNoState) link = split_if_longer(prefix, states_[prefix].length, token, known);
  states_[made].link = link;
  return made;
}

// Returns the state of the string (prefix of `length` tokens) + token, which leads to `target`. If target
// also holds longer strings, these stay there. The shorter ones move to a new state, since they now occur
// more often.
StateId Automaton::split_if_longer(StateId prefix, std::uint32_t length, std::int32_t token, StateId target) {
  if (states_[target].length == length + 1) return target;
  const StateId made = allocate(length + 1);
  State& upper = states_[target];
  State& lower = states_[made];
  lower.link = upper.link;
  lower.count = upper.count;
  lower.ends = upper.ends;
  lower.origin = upper.origin;
  upper.link = made;
  if (full_depth_only(target)) {
    lower.edges = upper.edges;
    upper.edges = EdgeList{};
    upper.ends = 0;
  } else {
    lower.edges = edges_.copy(upper.edges);
  }
  if (is_compacting()) correct(made);  // its number may already have been visited, unlike that of `upper`
  while (prefix != kNoState && retarget(prefix, token, target, made)) prefix = link(prefix);
  return made;
}

bool Automaton::retarget(StateId prefix, std::int32_t token, StateId from, StateId to) {
  StateId* target = edges_.find(states_[prefix].edges, token);
  if (target == nullptr || resolve(*target) != from) return false;
  *target = to;
  return true;
}

// Walks two chains in parallel: the states that now occur more often, and the states with edges to them, for
// which the token may have become the best continuation.
void Automaton::count_occurrences(Cursor tail, std::int32_t token, StateId target, std::int32_t next,
                                  const Occurrences& occurrences) {
  tail = settle(tail);  // the tail's own state may just have been split
  count_in(target, next, occurrences);
  std::uint32_t length = tail.length;
  StateId shorter = link(target);
  for (StateId prefix = tail.state; prefix != kRoot;) {
    while (length + 1 <= states_[shorter].length) {
      target = shorter;
      count_in(target, next, occurrences);
      shorter = link(target);
    }
    bump_best(prefix, token, target);
    prefix = link(prefix);
    length = states_[prefix].length;
  }
  for (; shorter != kRoot; shorter = link(shorter)) count_in(shorter, next, occurrences);
  edges_.prefetch(states_[kRoot].edges, next);
}

// Also prefetches the next token's edge, which is looked up in each counted state and at the root.
void Automaton::count_in(StateId id, std::int32_t next, const Occurrences& occurrences) {
  State& state = states_[id];
  state.count += occurrences.count;
  if (occurrences.origin < state.origin) state.origin = occurrences.origin & 3u;
  if (state.edges.best_token == next) {
    __builtin_prefetch(&states_[state.edges.best_target]);  // its present or former number
  } else {
    edges_.prefetch(state.edges, next);
  }
}

// The children's counts add up to num_continued, so the best child's count is rarely read.
void Automaton::bump_best(StateId prefix, std::int32_t token, StateId target) {
  EdgeList& edges = states_[prefix].edges;
  if (edges.best_token == token) return;
  const std::uint32_t count = states_[target].count;
  const std::size_t most_edges = 1 + EdgePool::block_slots(edges);
  if (count * most_edges < num_continued(prefix)) return edges_.note_rival(edges, count);  // below average
  const std::uint32_t best_count =
      most_edges == 2 ? num_continued(prefix) - count : states_[resolve(edges.best_target)].count;
  if (count >= best_count) edges_.promote(edges, token);
  edges_.note_rival(edges, std::min(count, best_count));
}

void Automaton::mark_end(Cursor tail, std::uint32_t sequences) {
  for (StateId id = tail.state; id != kRoot; id = link(id)) {
    states_[id].ends = (states_[id].ends + sequences) & kMaxEnds;
  }
}

void Automaton::unmark_end(Cursor tail, std::uint32_t sequences) {
  for (StateId id = tail.state; id != kRoot; id = link(id)) {
    states_[id].ends = (states_[id].ends - sequences) & kMaxEnds;
  }
}

// ---- removal ------------------------------------------------------------------------------------------

std::size_t Automaton::retract(Cursor begin, std::span<const std::int32_t> tokens, std::uint32_t sequences) {
  std::size_t visited = 0;
  ++version_;
  dead.clear();
  touched.clear();
  Cursor tail = begin;
  for (const std::int32_t token : tokens) {
    const StateId target = child(tail.state, token);
    assert(target != kNoState && states_[target].length == tail.length + 1);
    visited += discount(tail, token, target, sequences);
    tail = settle({target, std::min(tail.length + 1, depth_ - 1)});
  }
  unmark_end(tail, sequences);
  mark_end(begin, sequences);
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const StateId id : touched) {
    if (states_[id].count == 0) continue;
    visited += EdgePool::block_slots(states_[id].edges) / 8;
    refresh_best(id);
  }
  free_dead();
  return visited;
}

// Reverses count_occurrences. Dead states keep their links and edges until all tokens are walked.
std::size_t Automaton::discount(Cursor tail, std::int32_t token, StateId target, std::uint32_t occurrences) {
  std::size_t visited = 0;
  drop(target, occurrences);
  std::uint32_t length = tail.length;
  StateId shorter = link(target);
  for (StateId prefix = tail.state; prefix != kNoState; ++visited) {
    while (length + 1 <= states_[shorter].length) {
      target = shorter;
      drop(target, occurrences);
      shorter = link(target);
    }
    demote_best(prefix, token, target);
    prefix = link(prefix);
    if (prefix != kNoState) length = states_[prefix].length;
  }
  return visited;
}

void Automaton::drop(StateId id, std::uint32_t occurrences) {
  states_[id].count -= occurrences;
  if (states_[id].count == 0) dead.push_back(id);
}

void Automaton::demote_best(StateId prefix, std::int32_t token, StateId target) {
  State& state = states_[prefix];
  if (state.count == 0 && prefix != kRoot) return;  // dead as well: its edges are freed with it
  const std::uint32_t count = states_[target].count;
  const bool was_best = state.edges.best_token == token;
  if (was_best && prefix != kRoot && count <= edges_.rival_bound(state.edges)) touched.push_back(prefix);
  if (count == 0) edges_.remove(state.edges, token);
}

void Automaton::refresh_best(StateId id) {
  EdgeList& edges = states_[id].edges;
  std::uint32_t best_count = 0;
  std::uint32_t rival_count = 0;
  std::int32_t best_token = kNoToken;
  for_each_child(id, [&](std::int32_t token, StateId child) {
    const std::uint32_t count = states_[child].count;
    if (count > best_count || (count == best_count && token < best_token)) {
      rival_count = std::max(rival_count, best_count);
      best_count = count;
      best_token = token;
    } else {
      rival_count = std::max(rival_count, count);
    }
  });
  if (best_token == kNoToken) return;
  edges_.promote(edges, best_token);
  edges_.set_rival_bound(edges, rival_count);
}

void Automaton::free_dead() {
  if (dead.empty()) return;
  for (const StateId id : dead) free(id);
  ++generation_;
}

void Automaton::clear() noexcept {
  ++version_;
  ids_.release_all_but_first();
  states_.truncate(1);
  states_[kRoot] = State{};
  edges_.clear();
  phase_ = Phase::kIdle;
  last_unmoved_ = kNoState;
  num_moved_ = 0;
  ++generation_;
  trim();
}

// ---- memory -------------------------------------------------------------------------------------------

StateId Automaton::allocate(std::uint32_t length) {
  const StateId id = ids_.acquire();
  if (id == kNoState - 1) throw CapacityError("the index has reached the most states it can address");
  if (id == states_.size()) states_.extend(1);
  states_[id] = State{};
  states_[id].length = length & Automaton::kMaxDepth;
  return id;
}

void Automaton::free(StateId id) {
  edges_.release(states_[id].edges);
  states_[id] = State{};
  ids_.release(id);
  states_.truncate(ids_.end());
}

}  // namespace agentspec
