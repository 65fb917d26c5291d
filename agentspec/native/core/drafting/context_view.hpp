// Each tree's context at a place of a draft: the longest suffix of the text so far that a token has followed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/drafting/acceptance_model.hpp"
#include "core/index/automaton.hpp"

namespace agentspec {

struct ContextView {
  const Automaton* automaton;
  std::size_t tree;
  Cursor context;

  std::int32_t best_token() const { return automaton->best_token(context.state); }
  /// Continued occurrences of the context.
  std::uint32_t total() const { return automaton->num_continued(context.state); }
  /// Number of them that the token followed.
  std::uint32_t count(std::int32_t token) const { return count(*automaton, context.state, token); }
  static std::uint32_t count(const Automaton& automaton, StateId context, std::int32_t token) {
    if (automaton.best_token(context) == token) return automaton.count(automaton.best_target(context));
    const StateId child = automaton.child(context, token);
    return child == kNoState ? 0 : automaton.count(child);
  }
  /// Falls back to the longest suffix that a token has followed; length 0 if there is no such suffix.
  void fall_back() { context = automaton->fall_back(context); }
};

/// At most one view per tree, the most specific tree first.
struct ContextViews {
  std::array<ContextView, Evidence::kNumTrees> of;
  std::size_t size = 0;

  std::span<ContextView> all() { return std::span(of).first(size); }
  std::span<const ContextView> all() const { return std::span(of).first(size); }
  void add(const ContextView& view) { of[size++] = view; }
  std::uint32_t longest() const {
    std::uint32_t length = 0;
    for (const ContextView& one : all()) length = std::max(length, one.context.length);
    return length;
  }
};

}  // namespace agentspec
