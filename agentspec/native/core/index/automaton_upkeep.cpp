// Closing the holes of an automaton, and checking its invariants.

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/index/automaton.hpp"

namespace agentspec {
namespace {

void require(bool holds, const char* what, StateId id) {
  if (!holds) throw IntegrityError(std::string(what) + " at state " + std::to_string(id));
}

}  // namespace

void Automaton::check_integrity(std::span<const std::span<const std::int32_t>> sequences,
                                std::span<const Cursor> tails) const {
  std::vector<std::uint32_t> counts(states_.size());
  std::vector<std::uint32_t> ends(states_.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Cursor tail;
    for (const std::int32_t token : sequences[i]) {
      const StateId target = child(tail.state, token);
      require(target != kNoState, "a sequence can't be walked", tail.state);
      require(states_[target].length == tail.length + 1, "a sequence's string is not its state's longest",
              target);
      for (StateId id = target; id != kRoot; id = link(id)) ++counts[id];
      tail = settle({target, std::min(tail.length + 1, depth_ - 1)});
    }
    const Cursor kept = settle(tails[i]);
    require(kept.state == tail.state && kept.length == tail.length, "a tail is out of place", kept.state);
    for (StateId id = tail.state; id != kRoot; id = link(id)) ++ends[id];
  }
  for (StateId id = 1; id < states_.size(); ++id) {
    if (!ids_.is_used(id)) continue;
    require(counts[id] == states_[id].count, "count differs from a recount", id);
    require(ends[id] == states_[id].ends, "ends differ from a recount", id);
  }
  check_structure();
}

void Automaton::check_structure() const {
  check_states();
  check_accounting();
}

void Automaton::check_states() const {
  require(states_[kRoot].length == 0 && states_[kRoot].link == kNoState, "the root is damaged", kRoot);
  check_edges(kRoot);
  for (StateId id = 1; id < states_.size(); ++id) {
    if (!ids_.is_used(id) || states_[id].length == 0) continue;
    const State& state = states_[id];
    const StateId shorter = link(id);
    require(state.count > 0, "a state without occurrences is in use", id);
    require(state.length > states_[shorter].length, "length is not above the link's", id);
    require(state.length <= depth_, "length is above the depth", id);
    require(shorter == kRoot || states_[shorter].count >= state.count, "count is above the link's", id);
    require(!full_depth_only(id) || (state.edges.is_empty() && state.ends == 0), "edges beyond the depth",
            id);
    check_edges(id);
  }
}

void Automaton::check_edges(StateId id) const {
  const State& state = states_[id];
  const std::uint32_t context = std::min<std::uint32_t>(state.length, depth_ - 1);
  const std::uint32_t shortest = id == kRoot ? 0 : states_[link(id)].length + 1;
  std::uint64_t continued = 0;
  std::uint32_t rivals = 0;
  std::uint32_t best = 0;
  for_each_child(id, [&](std::int32_t token, StateId target) {
    const State& next = states_[target];
    require(next.count > 0, "an edge leads to a freed state", id);
    require(child(id, token) == target, "an edge can't be looked up", id);
    require(context + 1 <= next.length && shortest + 1 > states_[link(target)].length,
            "an edge leads to a state of other lengths", id);
    continued += next.count;
    const bool is_best = token == state.edges.best_token;
    (is_best ? best : rivals) = std::max<std::uint32_t>(is_best ? best : rivals, next.count);
  });
  if (id == kRoot || full_depth_only(id)) return;
  require(continued == num_continued(id), "the children's counts do not add up", id);
  require(best >= rivals, "the best edge is not the best", id);
  require(rivals <= edges_.rival_bound(state.edges), "the rival bound is too low", id);
}

void Automaton::check_accounting() const {
  require(ids_.end() == states_.size(), "the states' numbers and array differ", kRoot);
  std::size_t num_used = 0;
  std::size_t num_moved = 0;
  std::size_t used_slots = 0;
  for (StateId id = 0; id < states_.size(); ++id) {
    if (!ids_.is_used(id)) continue;
    ++num_used;
    if (id != kRoot && states_[id].length == 0) ++num_moved;
    used_slots += EdgePool::block_slots(states_[id].edges);
  }
  require(num_used == ids_.num_used(), "states are miscounted", kRoot);
  require(num_moved == num_moved_, "moved states are miscounted", kRoot);
  require(used_slots * sizeof(Edge) == edges_.used_bytes(), "edge slots are miscounted", kRoot);
}

bool Automaton::is_fragmented() const {
  constexpr std::size_t kNotWorthIt = 4 * kPageBytes;
  return extent_bytes() > used_bytes() / 4 * 5 + kNotWorthIt;
}

void Automaton::compact_some(std::size_t num_states, const std::function<void()>& settle_cursors) {
  ++version_;
  if (phase_ == Phase::kIdle) begin_moving();
  for (std::size_t visited = 0; visited < num_states && is_compacting(); ++visited) {
    switch (phase_) {
      case Phase::kMove:
        if (next_ > last_unmoved_ + 1) {
          move_one();
        } else {
          phase_ = Phase::kCorrect;
          next_ = kRoot;
        }
        break;
      case Phase::kCorrect:
        if (next_ < ids_.end()) {
          if (ids_.is_used(next_)) {
            visited += EdgePool::block_slots(states_[next_].edges) / 8;
            correct(next_);
          }
          ++next_;
        } else {
          settle_cursors();
          last_unmoved_ = kNoState;
          ++generation_;
          phase_ = Phase::kCut;
        }
        break;
      case Phase::kCut:
        if (num_moved_ > 0) {
          cut_one();
        } else {
          phase_ = Phase::kIdle;
        }
        break;
      case Phase::kIdle:
        break;
    }
  }
}

void Automaton::begin_moving() {
  last_unmoved_ = static_cast<StateId>(ids_.num_used()) - 1;
  next_ = ids_.end();
  phase_ = Phase::kMove;
}

void Automaton::move_one() {
  const StateId from = --next_;
  if (!ids_.is_used(from)) return;
  const StateId to = ids_.acquire();
  if (to > last_unmoved_) {  // new states have filled the holes: no more moves are needed
    ids_.release(to);
    last_unmoved_ = from;
    return;
  }
  states_[to] = states_[from];
  states_[from] = State{};
  states_[from].link = to;
  ++num_moved_;
}

void Automaton::correct(StateId id) {
  State& state = states_[id];
  if (id != kRoot && state.length == 0) return;  // has moved
  state.link = resolve(state.link);
  edges_.for_each_target(state.edges, [this](StateId& target) { target = resolve(target); });
  edges_.move_down(state.edges);
}

// The moved states are at the end, among few others. New states may have been allocated between them.
void Automaton::cut_one() {
  if (next_ > ids_.end()) next_ = ids_.end();
  const StateId id = --next_;
  if (id == kRoot || !ids_.is_used(id) || states_[id].length != 0) return;
  --num_moved_;
  free(id);
}

}  // namespace agentspec
