#include "core/index/match.hpp"

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

namespace {

constexpr std::size_t kFewest = 8;  // tokens of the first search

}  // namespace

Cursor Match::follow(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                     Cursor known) {
  const std::size_t longest = automaton.depth() - 1;
  if (known.length == 0 && is_begun(automaton) && num_new <= context.size()) {
    for (const std::int32_t token : context.last(num_new)) longest_ = automaton.advance(longest_, token);
    is_begun_ = false;
    return longest_;
  }
  is_begun_ = false;
  if (begins_anew(automaton, context, num_new)) {
    search(automaton, context, known);
  } else {
    carry_on(automaton, context.last(num_new), known);
  }
  generation_ = automaton.generation();
  while (longest_.length < std::min(longest, context.size()) && extend_left(automaton, context)) {
  }
  return longest_;
}

void Match::begin_at(const Automaton& automaton, Cursor tail, bool is_all) {
  const Cursor followed = automaton.fall_back(tail);
  if (!is_all && followed.length == tail.length && tail.length + 1 < automaton.depth()) return;
  longest_ = followed;
  witness_ = {};
  generation_ = automaton.generation();
  version_ = automaton.version();
  is_begun_ = true;
}

void Match::look_ahead(const Automaton& automaton, std::span<const std::int32_t> context, std::size_t num_new,
                       Lookahead& lookahead) const noexcept {
  if (is_begun(automaton) && num_new <= context.size())
    return lookahead.add_match(automaton, longest_, context.last(num_new));
  if (begins_anew(automaton, context, num_new)) {
    return lookahead.add_append(automaton, {}, context.last(std::min(context.size(), kFewest)));
  }
  lookahead.add_append(automaton, longest_, context.last(num_new));
  const std::size_t begun = longest_.length + num_new + 1;
  if (begun > context.size()) return;
  lookahead.add_append(automaton, witness_, context.last(begun).subspan(witness_.length));
}

bool Match::begins_anew(const Automaton& automaton, std::span<const std::int32_t> context,
                        std::size_t num_new) const {
  return generation_ != automaton.generation() || num_new + longest_.length > context.size();
}

// Matches the last few tokens, and twice as many each time all of them match.
void Match::search(const Automaton& automaton, std::span<const std::int32_t> context, Cursor known) {
  witness_ = {};
  longest_ = known;
  if (known.length > 0) return;
  const std::size_t most = std::min<std::size_t>(context.size(), automaton.depth() - 1);
  for (std::size_t num_tokens = std::min(most, kFewest);; num_tokens = std::min(most, num_tokens * 2)) {
    longest_ = {};
    for (const std::int32_t token : context.last(num_tokens)) longest_ = automaton.advance(longest_, token);
    if (longest_.length < num_tokens || num_tokens == most) return;
  }
}

void Match::carry_on(const Automaton& automaton, std::span<const std::int32_t> new_tokens, Cursor known) {
  const std::size_t unbroken = longest_.length + new_tokens.size();
  if (known.length == unbroken) {
    longest_ = known;
  } else {
    longest_ = automaton.settle(longest_);
    for (const std::int32_t token : new_tokens) longest_ = automaton.advance(longest_, token);
  }
  witness_ = longest_.length == unbroken ? automaton.settle(witness_) : Cursor{};
}

// Extends the match by the token before it. Returns false if that string does not occur.
bool Match::extend_left(const Automaton& automaton, std::span<const std::int32_t> context) {
  const auto tokens = context.last(longest_.length + 1);
  while (witness_.length < tokens.size()) {
    const StateId next = automaton.child(witness_.state, tokens[witness_.length]);
    if (next == kNoState) return false;
    witness_ = automaton.settle({next, witness_.length + 1});
  }
  longest_ = witness_;
  witness_ = {};
  return true;
}

}  // namespace agentspec
