#include "check.hpp"
#include "core/error.hpp"
#include "core/suffix_index.hpp"

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

} // namespace

int main() {
  ids_are_never_reused();
  finished_sequences_take_no_more_tokens();
  clearing_mutes_the_live_and_forgets_the_finished();
  memory_is_counted_and_returned();
}
