#include "core/automaton.hpp"

#include <algorithm>
#include <cassert>
#include <string>

#include "core/error.hpp"

namespace agentspec {

Automaton::Automaton(std::uint32_t depth) : depth_(depth) {
  if (depth < 2 || depth > kMaxDepth) {
    throw ConfigError("depth must be between 2 and " + std::to_string(kMaxDepth) + ", not " +
                      std::to_string(depth));
  }
  states_.push_back(State{});
}

Cursor Automaton::settle(Cursor cursor) const {
  while (cursor.state != kRoot && cursor.length <= states_[states_[cursor.state].link].length) {
    cursor.state = states_[cursor.state].link;
  }
  return cursor;
}

Cursor Automaton::advance(Cursor cursor, std::int32_t token) const {
  while (true) {
    const StateId next = child(cursor.state, token);
    if (next != kNoState) return settle({next, std::min(cursor.length + 1, depth_ - 1)});
    if (cursor.state == kRoot) return {};
    cursor.state = states_[cursor.state].link;
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

Cursor Automaton::extend(Cursor tail, std::int32_t token) {
  ensure_capacity();
  StateId target = child(tail.state, token);
  target = target == kNoState ? grow(tail, token) : split_if_longer(tail.state, tail.length, token, target);
  count_occurrence(tail, token, target);
  return settle({target, std::min(tail.length + 1, depth_ - 1)});
}

// A string that is new gets a state; every suffix of the tail that never had this token next gets an edge.
StateId Automaton::grow(Cursor tail, std::int32_t token) {
  const StateId made = allocate(tail.length + 1);
  StateId prefix = tail.state;
  StateId known = kNoState;
  while (prefix != kNoState && (known = child(prefix, token)) == kNoState) {
    edges_.add(states_[prefix].edges, token, made);
    prefix = states_[prefix].link;
  }
  StateId link = kRoot;
  if (prefix != kNoState) link = split_if_longer(prefix, states_[prefix].length, token, known);
  states_[made].link = link;
  return made;
}

// The state of the string (prefix of `length` tokens) + token, which leads to `target`. If target also holds
// longer strings, these stay there and the shorter ones move to a state of their own: from now on they occur
// once more.
StateId Automaton::split_if_longer(StateId prefix, std::uint32_t length, std::int32_t token, StateId target) {
  if (states_[target].length == length + 1) return target;
  const StateId made = allocate(length + 1);
  State& upper = states_[target];
  State& lower = states_[made];
  lower.link = upper.link;
  lower.count = upper.count;
  lower.ends = upper.ends;
  upper.link = made;
  if (full_depth_only(target)) {
    lower.edges = upper.edges;
    upper.edges = EdgeList{};
    upper.ends = 0;
  } else {
    lower.edges = edges_.copy(upper.edges);
  }
  while (prefix != kNoState && edges_.retarget(states_[prefix].edges, token, target, made)) {
    prefix = states_[prefix].link;
  }
  return made;
}

// Walks two chains at once: the states that now occur once more, and the states they are reached from, where
// the token may have become the best continuation.
void Automaton::count_occurrence(Cursor tail, std::int32_t token, StateId target) {
  tail = settle(tail);  // the tail's own state may have been split just now
  ++states_[target].count;
  std::uint32_t length = tail.length;
  for (StateId prefix = tail.state; prefix != kRoot;) {
    while (length + 1 <= states_[states_[target].link].length) {
      target = states_[target].link;
      ++states_[target].count;
    }
    favour(prefix, token, target);
    prefix = states_[prefix].link;
    length = states_[prefix].length;
  }
  while ((target = states_[target].link) != kRoot) ++states_[target].count;
}

void Automaton::favour(StateId prefix, std::int32_t token, StateId target) {
  EdgeList& edges = states_[prefix].edges;
  if (edges.best_token == token) return;
  const std::uint32_t best_count = states_[edges.best_target].count;
  const std::uint32_t count = states_[target].count;
  if (count >= best_count) edges_.promote(edges, token);
  edges_.note_rival(edges, std::min(count, best_count));
}

void Automaton::mark_end(Cursor tail) {
  for (StateId id = tail.state; id != kRoot; id = states_[id].link) ++states_[id].ends;
}

void Automaton::unmark_end(Cursor tail) {
  for (StateId id = tail.state; id != kRoot; id = states_[id].link) --states_[id].ends;
}

// ---- removal ------------------------------------------------------------------------------------------

void Automaton::retract(std::span<const std::int32_t> tokens) {
  Cursor tail;
  for (const std::int32_t token : tokens) {
    const StateId target = child(tail.state, token);
    assert(target != kNoState && states_[target].length == tail.length + 1);
    discount_occurrence(tail, token, target);
    tail = settle({target, std::min(tail.length + 1, depth_ - 1)});
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (const StateId id : touched_) {
    if (states_[id].count > 0) refresh_best(id);
  }
  touched_.clear();
  free_dead();
}

// The mirror image of count_occurrence. The dead keep links and edges until the whole sequence is walked.
void Automaton::discount_occurrence(Cursor tail, std::int32_t token, StateId target) {
  drop_occurrence(target);
  std::uint32_t length = tail.length;
  for (StateId prefix = tail.state; prefix != kNoState;) {
    while (length + 1 <= states_[states_[target].link].length) {
      target = states_[target].link;
      drop_occurrence(target);
    }
    disfavour(prefix, token, target);
    prefix = states_[prefix].link;
    if (prefix != kNoState) length = states_[prefix].length;
  }
}

void Automaton::drop_occurrence(StateId id) {
  if (--states_[id].count == 0) dead_.push_back(id);
}

void Automaton::disfavour(StateId prefix, std::int32_t token, StateId target) {
  State& state = states_[prefix];
  if (state.count == 0 && prefix != kRoot) return;  // dead as well: its edges go with it
  const std::uint32_t count = states_[target].count;
  const bool was_best = state.edges.best_token == token;
  if (was_best && prefix != kRoot && count <= edges_.rival_bound(state.edges)) touched_.push_back(prefix);
  if (count == 0) edges_.remove(state.edges, token);
}

void Automaton::refresh_best(StateId id) {
  EdgeList& edges = states_[id].edges;
  std::uint32_t best_count = 0;
  std::uint32_t rival_count = 0;
  std::int32_t best_token = kNoToken;
  edges_.for_each(edges, [&](const Edge& edge) {
    const std::uint32_t count = states_[edge.target].count;
    if (count > best_count || (count == best_count && edge.token < best_token)) {
      rival_count = std::max(rival_count, best_count);
      best_count = count;
      best_token = edge.token;
    } else {
      rival_count = std::max(rival_count, count);
    }
  });
  if (best_token == kNoToken) return;
  edges_.promote(edges, best_token);
  edges_.set_rival_bound(edges, rival_count);
}

void Automaton::free_dead() {
  for (const StateId id : dead_) {
    edges_.release(states_[id].edges);
    states_[id] = State{};
    states_[id].link = free_;
    free_ = id;
  }
  num_free_ += dead_.size();
  dead_.clear();
}

// ---- memory -------------------------------------------------------------------------------------------

StateId Automaton::allocate(std::uint32_t length) {
  StateId id = free_;
  if (id == kNoState) {
    id = static_cast<StateId>(states_.size());
    states_.push_back(State{});
  } else {
    free_ = states_[id].link;
    --num_free_;
    states_[id] = State{};
  }
  states_[id].length = length;
  return id;
}

// One token adds at most two states and fewer than 2 * depth edges, plus one table that doubles.
void Automaton::ensure_capacity() const {
  if (states_.size() + 2 >= kNoState || edges_.num_slots() >= EdgePool::kMaxSlots / 2) {
    throw CapacityError("the index has reached the most states or edges it can address");
  }
}

std::vector<StateId> Automaton::compact() {
  std::vector<StateId> moved(states_.size(), kNoState);
  StateId next = 0;
  for (StateId id = 0; id < states_.size(); ++id) {
    if (id == kRoot || states_[id].count > 0) moved[id] = next++;
  }
  PodArray<State> states;
  states.reserve(next);
  EdgePool edges;
  edges.reserve(edges_.used_bytes() / sizeof(Edge));
  for (StateId id = 0; id < states_.size(); ++id) {
    if (moved[id] == kNoState) continue;
    State state = states_[id];
    if (state.link != kNoState) state.link = moved[state.link];
    state.edges = edges.copy_from(edges_, state.edges);
    edges.for_each_target(state.edges, [&](StateId& target) { target = moved[target]; });
    states.push_back(state);
  }
  states_ = std::move(states);
  edges_ = std::move(edges);
  free_ = kNoState;
  num_free_ = 0;
  return moved;
}

}  // namespace agentspec
