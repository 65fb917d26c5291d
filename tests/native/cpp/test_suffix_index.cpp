#include "check.hpp"
#include "core/error.hpp"
#include "core/index/suffix_index.hpp"

#include <map>
#include <random>

using namespace agentspec;

namespace {

void ids_are_never_reused() {
  SuffixIndex index(4, SuffixIndex::kUnlimited);
  const SequenceId first = index.open();
  index.append(first, Tokens{1, 2});
  index.remove(first);
  const SequenceId second = index.open();
  CHECK(first != second);
  CHECK(!index.is_live(first) && index.is_live(second));
  CHECK_THROWS(index.append(first, Tokens{1}), UnknownIdError);
  CHECK_THROWS(index.close(first), UnknownIdError);
}

void finished_sequences_take_no_more_tokens() {
  SuffixIndex index(4, SuffixIndex::kUnlimited);
  const SequenceId id = index.open();
  index.append(id, Tokens{1, 2});
  index.close(id);
  CHECK_THROWS(index.append(id, Tokens{3}), UnknownIdError);
  CHECK(index.num_tokens() == 2);
  CHECK(index.count(Tokens{1, 2}) == 1);
}

void clearing_mutes_the_live_and_forgets_the_finished() {
  SuffixIndex index(4, SuffixIndex::kUnlimited);
  const SequenceId live = index.open();
  const SequenceId finished = index.open();
  index.append(live, Tokens{1, 2});
  index.append(finished, Tokens{1, 2});
  index.close(finished);
  index.clear();
  CHECK(index.num_tokens() == 0 && index.num_sequences() == 1);
  CHECK(index.is_live(live) && !index.is_learned(live));
  CHECK(!index.append(live, Tokens{3}));
  index.close(live);
  CHECK(!index.is_live(live) && index.num_sequences() == 0);
  index.check_integrity();
}

void memory_is_counted_and_returned() {
  SuffixIndex index(16, SuffixIndex::kUnlimited);
  const std::size_t empty = index.memory_bytes();
  std::vector<Tokens> texts;
  for (std::int32_t i = 0; i < 50; ++i) {
    Tokens tokens;
    for (std::int32_t j = 0; j < 100; ++j)
      tokens.push_back((i * 31 + j * j) % 97);
    const SequenceId id = index.open();
    index.append(id, tokens);
    index.close(id);
    texts.push_back({tokens.begin(), tokens.begin() + 16});
  }
  const std::size_t full = index.memory_bytes();
  CHECK(full >= index.used_bytes() && full > empty + 50 * 100 * 4);
  index.enforce(full / 2);
  CHECK(index.memory_bytes() <= full / 2);
  CHECK(index.count(texts.front()) == 0 && index.count(texts.back()) == 1);
  index.check_integrity();
  index.enforce(0);
  CHECK(index.num_tokens() == 0 && index.memory_bytes() < empty + 64 * 128);
}

std::uint32_t below(std::mt19937 &random, std::uint32_t bound) {
  return static_cast<std::uint32_t>(random() % bound);
}

Tokens random_text(std::mt19937 &random, std::size_t size, std::uint32_t alphabet) {
  Tokens text;
  while (text.size() < size)
    text.push_back(static_cast<std::int32_t>(below(random, alphabet)));
  return text;
}

void learn(SuffixIndex &index, const Tokens &text, std::uint32_t uses = 1) {
  const SequenceId id = index.open(uses);
  index.append(id, text);
  index.close(id);
}

void require_same_counts(const SuffixIndex &a, const SuffixIndex &b, const Tokens &text) {
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t size = 1; size <= 5 && begin + size <= text.size(); ++size) {
      const auto string = std::span(text).subspan(begin, size);
      CHECK(a.count(string) == b.count(string));
      const StateId state = a.automaton().locate(string);
      const StateId other = b.automaton().locate(string);
      CHECK((state == kNoState) == (other == kNoState));
      if (state != kNoState)
        CHECK(a.automaton().best_token(state) == b.automaton().best_token(other));
    }
  }
}

// Compares learning, continuing and evicting with several uses and one by one.
void a_sequence_with_uses_counts_as_equal_ones() {
  std::mt19937 random(1);
  for (int run = 0; run < 60; ++run) {
    SuffixIndex at_once(5, SuffixIndex::kUnlimited), one_by_one(5, SuffixIndex::kUnlimited);
    std::vector<Tokens> texts;
    for (int i = 0; i < 12; ++i) {
      texts.push_back(random_text(random, 1 + below(random, 20), 3));
      const std::uint32_t uses = 1 + below(random, 4);
      learn(at_once, texts.back(), uses);
      for (std::uint32_t use = 0; use < uses; ++use)
        learn(one_by_one, texts.back());
      require_same_counts(at_once, one_by_one, texts.back());
    }
    at_once.check_integrity();
    CHECK(at_once.num_tokens() == one_by_one.num_tokens());
    CHECK(at_once.num_sequences() == one_by_one.num_sequences());
    while (one_by_one.num_tokens() > 0) {
      CHECK(at_once.evict(1) == one_by_one.evict(1));
      at_once.check_integrity();
      for (const Tokens &text : texts)
        require_same_counts(at_once, one_by_one, text);
    }
    CHECK(at_once.num_sequences() == 0);
  }
}

void a_live_sequence_with_uses_can_be_stopped_and_taken_back() {
  SuffixIndex index(5, SuffixIndex::kUnlimited);
  const SequenceId taken = index.open(3);
  index.append(taken, Tokens{1, 2, 3});
  CHECK(index.num_sequences() == 3 && index.num_tokens() == 9);
  const SequenceId stopped = index.open(2);
  index.append(stopped, Tokens{1, 2});
  CHECK(index.count(Tokens{1, 2}) == 5);
  index.stop(stopped);
  index.check_integrity();
  index.remove(taken);
  CHECK(index.count(Tokens{1, 2}) == 2 && index.num_sequences() == 2);
  index.close(stopped);
  index.check_integrity();
  index.clear();
  CHECK(index.num_sequences() == 0 && index.num_tokens() == 0);
  CHECK_THROWS(SuffixIndex::check_uses(0), ConfigError);
  CHECK_THROWS(SuffixIndex::check_uses(SuffixIndex::kMaxUses + 1), ConfigError);
}

// Equal outputs beyond the most uses are a separate output.
void outputs_are_read_from_the_oldest_to_the_youngest_with_their_uses() {
  SuffixIndex index(5, SuffixIndex::kUnlimited);
  learn(index, Tokens{1, 2, 3}, SuffixIndex::kMaxUses);
  learn(index, Tokens{4}, 2);
  learn(index, Tokens{1, 2, 3});
  learn(index, Tokens{4});
  const SequenceId live = index.open();
  index.append(live, Tokens{5, 6});
  index.stop(live); // the rest of it is no output yet
  Outputs outputs;
  index.begin_reading();
  index.read(outputs);
  CHECK((outputs.tokens == Tokens{1, 2, 3, 1, 2, 3, 4}));
  CHECK((outputs.sizes == std::vector<std::uint32_t>{3, 3, 1}));
  CHECK((outputs.uses == std::vector<std::uint32_t>{SuffixIndex::kMaxUses, 1, 3}));
  index.read(outputs);
  CHECK(outputs.sizes.size() == 3);
}

// Between the pieces, outputs are repeated, or new ones are learned and evicted.
void what_stays_is_read_once_whatever_happens_meanwhile() {
  std::mt19937 random(2);
  for (int run = 0; run < 20; ++run) {
    SuffixIndex index(8, SuffixIndex::kUnlimited);
    std::vector<Tokens> texts;
    for (std::int32_t i = 0; i < 600; ++i) {
      texts.push_back(random_text(random, 1 + below(random, 200), 300));
      texts.back().push_back(1000 + i); // no two are equal
      learn(index, texts.back());
    }
    std::map<Tokens, int> num_read;
    std::int32_t num_new = 10'000;
    Outputs outputs;
    index.begin_reading();
    for (index.read(outputs); !outputs.sizes.empty(); index.read(outputs)) {
      auto at = outputs.tokens.begin();
      for (const std::uint32_t size : outputs.sizes) {
        ++num_read[Tokens(at, at + size)];
        at += size;
      }
      outputs = {};
      for (std::uint32_t i = below(random, 30); i > 0; --i) {
        if (run % 2 == 0) {
          learn(index, texts[below(random, 600)]);
        } else {
          learn(index, Tokens{7, ++num_new});
          index.evict(below(random, 200));
        }
      }
    }
    CHECK(num_read.size() > 100);
    for (const auto &[text, times] : num_read)
      CHECK(times == 1);
    index.begin_reading();
    for (index.read(outputs); !outputs.sizes.empty(); index.read(outputs)) {
      auto at = outputs.tokens.begin();
      for (const std::uint32_t size : outputs.sizes) {
        const Tokens text(at, at + size);
        if (text.back() >= 1000 && text.back() < 10'000) // complete, and present from the beginning
          CHECK(num_read.contains(text));
        at += size;
      }
      outputs = {};
    }
    index.check_integrity();
  }
}

void require_equal_counts(const SuffixIndex &a, const SuffixIndex &b, const Tokens &text) {
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t size = 1; size <= 6 && begin + size <= text.size(); ++size)
      CHECK(a.count(std::span(text).subspan(begin, size)) == b.count(std::span(text).subspan(begin, size)));
  }
}

void forget(SuffixIndex &index, const Tokens &text) {
  while (index.forget_piece(text))
    index.check_integrity();
  index.check_integrity();
}

// Counts are those of an index that never learned it.
void a_forgotten_output_leaves_nothing_behind() {
  std::mt19937 random(3);
  for (int run = 0; run < 40; ++run) {
    const bool marks_begins = run % 2 == 1;
    SuffixIndex index(6, SuffixIndex::kUnlimited, marks_begins);
    SuffixIndex without(6, SuffixIndex::kUnlimited, marks_begins);
    const Tokens forgotten = random_text(random, 1 + below(random, 900), 4);
    std::vector<Tokens> others;
    for (int i = 0; i < 6; ++i) {
      others.push_back(random_text(random, 1 + below(random, 40), 4));
      others.back().push_back(9); // it is never a beginning of the forgotten one
      const std::uint32_t uses = 1 + below(random, 3);
      learn(index, others.back(), uses);
      learn(without, others.back(), uses);
      if (i % 2 == 0)
        learn(index, forgotten, uses);
    }
    forget(index, forgotten);
    CHECK(!index.forget_piece(forgotten));
    CHECK(index.num_sequences() == without.num_sequences() && index.num_tokens() == without.num_tokens());
    for (const Tokens &other : others)
      require_equal_counts(index, without, other);
    require_equal_counts(index, without, forgotten);
    index.evict(index.num_tokens());
    CHECK(index.automaton().num_states() == 1);
  }
}

void the_beginning_of_an_output_is_a_context_of_its_own() {
  SuffixIndex index(5, SuffixIndex::kUnlimited, true);
  learn(index, Tokens{1, 2});
  learn(index, Tokens{3, 1, 4}, 2);
  const auto best_after = [&](const Tokens &text) {
    return index.automaton().best_token(index.match(text).state);
  };
  CHECK(best_after({kBeginToken}) == 3 && best_after({kBeginToken, 1}) == 2);
  CHECK(best_after({1}) == 4 && best_after({3, 1}) == 4);
  CHECK(index.num_tokens() == 8 && index.count(Tokens{1}) == 3);
  const SequenceId live = index.open();
  CHECK(index.tail(live).length == 0);
  index.append(live, Tokens{1});
  CHECK(index.tail(live).length == 2);
  index.check_integrity();
  index.remove(live);
  index.check_integrity();
  CHECK(best_after({kBeginToken}) == 3);
}

void an_output_beyond_the_most_uses_is_forgotten_in_all_its_parts() {
  SuffixIndex index(5, SuffixIndex::kUnlimited);
  learn(index, Tokens{1, 2, 3}, SuffixIndex::kMaxUses);
  learn(index, Tokens{1, 2, 3}, 7);
  learn(index, Tokens{1, 2});
  forget(index, Tokens{1, 2, 3});
  CHECK(index.num_sequences() == 1 && index.num_tokens() == 2);
  CHECK(index.count(Tokens{1, 2}) == 1 && index.count(Tokens{3}) == 0);
}

// An output that is being evicted has lost its end. Running ones stay.
void what_is_left_of_an_output_is_forgotten_and_running_ones_stay() {
  SuffixIndex index(5, SuffixIndex::kUnlimited);
  Tokens text(600);
  for (std::int32_t i = 0; i < 600; ++i)
    text[static_cast<std::size_t>(i)] = i % 7;
  const SequenceId live = index.open();
  index.append(live, Tokens{1, 2, 3});
  const SequenceId stopped = index.open();
  index.append(stopped, Tokens{1, 2, 3});
  index.stop(stopped);
  learn(index, text);
  learn(index, Tokens{5, 5, 5});
  index.evict(300);
  CHECK(index.num_tokens() < 600);
  forget(index, text);
  CHECK(index.count(Tokens{0}) == 0 && index.count(Tokens{5}) == 3);
  forget(index, Tokens{1, 2, 3});
  CHECK(index.count(Tokens{1}) == 1 || index.count(Tokens{1}) == 2);
  index.close(live);
  index.close(stopped);
  forget(index, Tokens{1, 2, 3});
  CHECK(index.count(Tokens{1}) == 0 && index.num_tokens() == 3);
}

// An index that is full learns the first pieces of an output.
void the_first_pieces_of_an_output_are_forgotten_with_it() {
  SuffixIndex index(5, SuffixIndex::kUnlimited);
  Tokens text(600, 9);
  learn(index, Tokens(text.begin(), text.begin() + SuffixIndex::kPieceTokens));
  learn(index, Tokens(text.begin(), text.begin() + 300));
  forget(index, text);
  CHECK(index.num_tokens() == 300);
}

} // namespace

int main() {
  a_forgotten_output_leaves_nothing_behind();
  the_beginning_of_an_output_is_a_context_of_its_own();
  an_output_beyond_the_most_uses_is_forgotten_in_all_its_parts();
  what_is_left_of_an_output_is_forgotten_and_running_ones_stay();
  the_first_pieces_of_an_output_are_forgotten_with_it();
  a_sequence_with_uses_counts_as_equal_ones();
  a_live_sequence_with_uses_can_be_stopped_and_taken_back();
  outputs_are_read_from_the_oldest_to_the_youngest_with_their_uses();
  what_stays_is_read_once_whatever_happens_meanwhile();
  ids_are_never_reused();
  finished_sequences_take_no_more_tokens();
  clearing_mutes_the_live_and_forgets_the_finished();
  memory_is_counted_and_returned();
}
