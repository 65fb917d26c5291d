// Each tree's context at a place of a draft: the longest suffix of the text so far that a token has followed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/drafting/evidence.hpp"
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

/// The request's own text at a place of a draft.
class OwnText {
 public:
  OwnText() = default;
  /// `match`: the longest suffix that occurs in it.
  OwnText(const Automaton* automaton, Cursor match) : automaton_(automaton), context_(match) { settle(); }

  /// Adds what it says of a token, which trees propose. Their longest context has `of_all` tokens. Looks up
  /// the token in a few contexts.
  void tell(std::int32_t token, std::uint32_t of_all, Evidence& evidence) const {
    if (automaton_ == nullptr) return;
    evidence.add_own(length_before(token), context_.length, of_all);
  }
  /// Continues the text by a token of the draft. O(chain).
  void follow(std::int32_t token) {
    if (automaton_ == nullptr) return;
    context_ = automaton_->advance(context_, token);
    settle();
  }
  /// The same, if a view of the text has followed the token already, to `context`.
  void follow_to(Cursor context) {
    context_ = context;
    settle();
  }

 private:
  void settle() {
    if (automaton_ == nullptr) return;
    context_ = automaton_->fall_back(context_);
  }
  /// Length of the longest context that the token has followed, of which kMostOwnLength tokens count; -1 if
  /// it does not occur. A token that follows a context follows its suffixes, too.
  int length_before(std::int32_t token) const {
    StateId state = context_.state;
    if (automaton_->best_token(state) == token) return static_cast<int>(context_.length);
    while (state != kRoot && automaton_->length(automaton_->link(state)) >= Evidence::kMostOwnLength)
      state = automaton_->link(state);  // a shorter suffix that counts as much
    if (follows(state, token)) return static_cast<int>(context_.length);
    if (state == kRoot || !follows(kRoot, token)) return -1;
    state = automaton_->link(state);
    while (!follows(state, token)) state = automaton_->link(state);
    return static_cast<int>(automaton_->length(state));
  }
  bool follows(StateId context, std::int32_t token) const {
    return automaton_->child(context, token) != kNoState;
  }

  const Automaton* automaton_ = nullptr;
  Cursor context_;  // the longest suffix that a token has followed in it
};

/// At most one view per tree, the most specific tree first.
struct ContextViews {
  std::array<ContextView, Evidence::kNumTrees> of;
  std::size_t size = 0;

  std::span<ContextView> all() { return std::span(of).first(size); }
  std::span<const ContextView> all() const { return std::span(of).first(size); }
  void add(const ContextView& view) { of[size++] = view; }
  /// Drops the views for which keep(view, those kept before it) is false; keep() may change its view.
  template <typename Keep>
  void keep_if(const Keep& keep) {
    std::size_t num_kept = 0;
    for (ContextView& one : all()) {
      if (!keep(one, std::span<const ContextView>(of).first(num_kept))) continue;
      if (&of[num_kept] != &one) of[num_kept] = one;
      ++num_kept;
    }
    size = num_kept;
  }
  std::uint32_t longest() const {
    std::uint32_t length = 0;
    for (const ContextView& one : all()) length = std::max(length, one.context.length);
    return length;
  }
};

}  // namespace agentspec
