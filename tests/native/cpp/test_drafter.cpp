#include "check.hpp"
#include "core/drafting/drafter.hpp"
#include "core/index/suffix_index.hpp"

using namespace agentspec;

namespace {

struct Filled : SuffixIndex {
  explicit Filled(const std::vector<Tokens> &sequences)
      : SuffixIndex(9, kUnlimited) {
    for (const Tokens &tokens : sequences) {
      const SequenceId id = open();
      append(id, tokens);
      close(id);
    }
  }
};

DraftTokens draft(const SuffixIndex &index, const Tokens &context,
                  const DraftOptions &options) {
  DraftTokens best;
  Drafter().improve(index.automaton(), index.match(context), options, best);
  return best;
}

void a_chain_follows_the_highest_counts() {
  const Filled index({{1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 2, 6}});
  const DraftTokens best = draft(index, {1, 2}, {.max_tokens = 8});
  CHECK((best.token_ids == Tokens{3, 4}));
  CHECK((best.parents == Tokens{-1, 0}));
  CHECK(best.probs[0] == 0.75 && best.probs[1] == 0.75 * (2.0 / 3.0));
  CHECK(best.match_length == 2);
}

void a_tree_takes_the_most_probable_nodes() {
  const Filled index({{1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 2, 6}});
  const DraftTokens best =
      draft(index, {1, 2}, {.is_tree = true, .max_tokens = 3});
  CHECK((best.token_ids == Tokens{3, 4, 6}) ||
        (best.token_ids == Tokens{3, 4, 5}));
  CHECK((best.parents[0] == -1 && best.parents[1] == 0));
  CHECK(best.score == 0.75 + 0.75 * (2.0 / 3.0) + 0.25);
}

void limits_hold() {
  const Filled index({{1, 2, 3, 4, 5, 6, 7, 8}});
  CHECK(
      draft(index, {1, 2}, {.max_tokens = 8, .alpha = 1.5}).token_ids.size() ==
      3);
  CHECK(draft(index, {1, 2}, {.max_tokens = 2}).token_ids.size() == 2);
  CHECK(draft(index, {1, 2}, {.max_tokens = 8, .min_match = 3})
            .token_ids.empty());
  CHECK(draft(index, {8}, {.max_tokens = 8}).token_ids.empty());
  CHECK(draft(index, {}, {.max_tokens = 8}).token_ids.empty());
}

void only_a_higher_score_replaces_a_draft() {
  const Filled index({{1, 2, 3, 4}});
  DraftTokens best;
  best.score = 2.0;
  CHECK(!Drafter().improve(index.automaton(), index.match(Tokens{1, 2}),
                           {.max_tokens = 8}, best));
  best.score = 1.9;
  CHECK(Drafter().improve(index.automaton(), index.match(Tokens{1, 2}),
                          {.max_tokens = 8}, best));
}

} // namespace

int main() {
  a_chain_follows_the_highest_counts();
  a_tree_takes_the_most_probable_nodes();
  limits_hold();
  only_a_higher_score_replaces_a_draft();
}
