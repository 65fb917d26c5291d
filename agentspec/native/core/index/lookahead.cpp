#include "core/index/lookahead.hpp"

#include <algorithm>
#include <new>

namespace agentspec {
namespace {

constexpr std::size_t kMostTokens = 4;  // per walk: the number that a step usually accepts
constexpr int kRounds = 24;             // states ahead of a draft: a usual one ends there
constexpr int kChainRounds = 3;

template <typename T>
void add_if_possible(std::vector<T>& list, const T& added) noexcept {
  try {
    list.push_back(added);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

void Lookahead::add_append(const Automaton& automaton, Cursor tail,
                           std::span<const std::int32_t> tokens) noexcept {
  if (tokens.empty()) return;
  add_walk(automaton, tail, tokens, Kind::kAppend);
  add_if_possible(chains_, {&automaton, tail.state});
}

void Lookahead::add_match(const Automaton& automaton, Cursor match,
                          std::span<const std::int32_t> tokens) noexcept {
  if (!tokens.empty()) add_walk(automaton, match, tokens, Kind::kMatch);
}

void Lookahead::add_walk(const Automaton& automaton, Cursor begin, std::span<const std::int32_t> tokens,
                         Kind kind) noexcept {
  add_if_possible(walks_,
                  {&automaton, begin.state, tokens.first(std::min(tokens.size(), kMostTokens)), kind});
  automaton.prefetch(begin.state);
}

void Lookahead::add_draft(const Automaton& automaton, Cursor match) noexcept {
  if (match.length == 0) return;
  add_if_possible(walks_, {&automaton, match.state, {}, Kind::kDraft});
  add_if_possible(chains_, {&automaton, match.state});
  automaton.prefetch(match.state);
}

void Lookahead::run() noexcept {
  for (int round = 0; round < kRounds && !walks_.empty(); ++round) {
    for (const Walk& walk : walks_) {
      if (walk.kind != Kind::kDraft) walk.automaton->prefetch_edge(walk.state, walk.tokens.front());
    }
    std::erase_if(walks_, [this](Walk& walk) { return !step(walk); });
  }
  for (int round = 0; round < kChainRounds; ++round) {
    for (Chain& chain : chains_) {
      if (chain.state == kRoot) continue;
      chain.automaton->prefetch_edges(chain.state);
      chain.state = chain.automaton->link(chain.state);
      chain.automaton->prefetch(chain.state);
    }
  }
  walks_.clear();
  chains_.clear();
}

// Moves one state further. Returns false at the walk's end.
bool Lookahead::step(Walk& walk) {
  const Automaton& automaton = *walk.automaton;
  StateId next;
  if (walk.kind == Kind::kDraft) {
    next = automaton.best_token(walk.state) == kNoToken ? kNoState : automaton.best_target(walk.state);
  } else {
    next = automaton.child(walk.state, walk.tokens.front());
    if (next != kNoState || walk.state == kRoot) walk.tokens = walk.tokens.subspan(1);
    if (next != kNoState) {
      if (walk.kind == Kind::kAppend) add_if_possible(chains_, {&automaton, next});
    } else if (walk.state != kRoot) {
      next = automaton.link(walk.state);
    } else {
      next = kRoot;
    }
  }
  if (next == kNoState) return false;
  walk.state = next;
  automaton.prefetch(next);
  return walk.kind == Kind::kDraft || !walk.tokens.empty();
}

}  // namespace agentspec
