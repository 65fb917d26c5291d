#include "check.hpp"
#include "core/index/automaton.hpp"
#include "core/error.hpp"

using namespace agentspec;

namespace {

std::uint32_t count(const Automaton &automaton, const Tokens &tokens) {
  const StateId id = automaton.locate(tokens);
  return id == kNoState ? 0 : automaton.count(id);
}

void counts_all_strings_up_to_the_depth() {
  Automaton automaton(3);
  const Tokens text{1, 2, 1, 2, 1};
  const Cursor tail = automaton.append({}, text);
  automaton.mark_end(tail);
  CHECK(count(automaton, {1}) == 3);
  CHECK(count(automaton, {1, 2}) == 2);
  CHECK(count(automaton, {1, 2, 1}) == 2);
  CHECK(count(automaton, {1, 2, 1, 2}) == 0);
  CHECK(tail.length == 2);
  CHECK(automaton.num_continued(automaton.locate(Tokens{1})) == 2);
  CHECK(automaton.num_continued(automaton.locate(Tokens{2, 1})) == 1);
}

void sequences_interleave() {
  Automaton automaton(8);
  Cursor first;
  Cursor second;
  for (std::int32_t token = 0; token < 20; ++token) {
    first = automaton.append(automaton.settle(first), Tokens{token});
    second = automaton.append(automaton.settle(second), Tokens{token / 2});
  }
  CHECK(count(automaton, {3, 4, 5}) == 1);
  CHECK(count(automaton, {3, 3, 4}) == 1);
  CHECK(count(automaton, {3}) == 3);
}

Cursor append_all(Automaton &automaton, const Tokens &tokens) {
  const Cursor tail = automaton.append({}, tokens);
  automaton.mark_end(tail);
  return tail;
}

void removal_leaves_an_empty_automaton() {
  Automaton automaton(4);
  const Tokens text{1, 1, 2, 1, 1, 2, 3};
  append_all(automaton, text);
  append_all(automaton, {1, 2});
  automaton.retract({}, text);
  CHECK(count(automaton, {1}) == 1 && count(automaton, {1, 1}) == 0 &&
        count(automaton, {1, 2}) == 1);
  automaton.retract({}, Tokens{1, 2});
  CHECK(automaton.num_states() == 1);
  CHECK(automaton.used_bytes() == sizeof(State));
}

void the_end_of_a_sequence_can_be_removed() {
  Automaton automaton(4);
  const Tokens text{1, 1, 2, 1, 1, 2, 3};
  append_all(automaton, text);
  Cursor begin;
  for (std::size_t i = 0; i < 4; ++i)
    begin = automaton.advance(begin, text[i]);
  automaton.retract(begin, std::span(text).subspan(4));
  const Tokens left(text.begin(), text.begin() + 4);
  const std::span<const std::int32_t> texts[] = {left};
  const Cursor tails[] = {automaton.settle(begin)};
  automaton.check_integrity(texts, tails);
}

void compaction_keeps_everything_at_every_moment() {
  Automaton automaton(6);
  Tokens text;
  for (std::int32_t i = 0; i < 500; ++i)
    text.push_back(i * i % 17);
  Tokens gone;
  for (std::int32_t i = 0; i < 500; ++i)
    gone.push_back(100 + i);
  append_all(automaton, gone);
  Cursor tail = append_all(automaton, text);
  automaton.retract({}, gone);
  const std::size_t used = automaton.used_bytes();
  CHECK(automaton.extent_bytes() > 2 * used);
  const std::span<const std::int32_t> texts[] = {text};
  int num_settled = 0;
  do {
    automaton.compact_some(3, [&] {
      tail = automaton.settle(tail);
      ++num_settled;
    });
    const Cursor tails[] = {tail};
    automaton.check_integrity(texts, tails);
  } while (automaton.is_compacting());
  CHECK(num_settled == 1);
  CHECK(automaton.used_bytes() == used && automaton.extent_bytes() == used);
}

void a_broken_count_is_noticed() {
  Automaton automaton(4);
  const Tokens text{1, 2, 3};
  const Cursor tails[] = {automaton.append({}, text)}; // its end is not marked
  const std::span<const std::int32_t> texts[] = {text};
  CHECK_THROWS(automaton.check_integrity(texts, tails), IntegrityError);
}

void matching_finds_the_longest_suffix() {
  Automaton automaton(5);
  automaton.append({}, Tokens{1, 2, 3, 4, 5, 6, 7});
  Cursor cursor;
  const std::uint32_t lengths[] = {1, 2, 3, 4, 4, 0, 1, 1};
  const Tokens query{2, 3, 4, 5, 6, 9, 4, 7};
  for (std::size_t i = 0; i < query.size(); ++i) {
    cursor = automaton.advance(cursor, query[i]);
    CHECK(cursor.length == lengths[i]);
  }
}

} // namespace

int main() {
  counts_all_strings_up_to_the_depth();
  sequences_interleave();
  removal_leaves_an_empty_automaton();
  the_end_of_a_sequence_can_be_removed();
  compaction_keeps_everything_at_every_moment();
  a_broken_count_is_noticed();
  matching_finds_the_longest_suffix();
  CHECK_THROWS(Automaton(1), ConfigError);
  CHECK_THROWS(Automaton(Automaton::kMaxDepth + 1), ConfigError);
}
