// Automaton::compact_some: closes the holes a few states at a time, while the automaton stays usable.
//
//   move      from the top, each state in use moves into the lowest hole and leaves its new number (length 0)
//   correct   from the bottom, every state's link and edges get the new numbers, and its block of edges moves
//             into the lowest hole of its size
//   cut       no reference uses the old numbers any more: they are freed, together with the arrays' ends

#include "core/index/automaton.hpp"

namespace agentspec {

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
