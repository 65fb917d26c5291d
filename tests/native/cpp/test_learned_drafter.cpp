#include "check.hpp"
#include "core/drafting/learned_drafter.hpp"

#include <cmath>
#include <numeric>
#include <random>
#include <set>

using namespace agentspec;

namespace {

Evidence evidence_of(std::uint32_t length, std::uint32_t count,
                     std::uint32_t total) {
  Evidence evidence;
  evidence.add_context(0, false, length, count, total);
  return evidence;
}

void before_it_has_learned_a_model_believes_evidence(const AcceptanceModel& model) {
  const double once_after_one = model.estimate(evidence_of(1, 1, 1));
  const double once_after_many = model.estimate(evidence_of(30, 1, 1));
  const double always = model.estimate(evidence_of(30, 100, 100));
  const double seldom = model.estimate(evidence_of(30, 5, 100));
  CHECK(once_after_one < once_after_many);
  CHECK(once_after_many < always);
  CHECK(seldom < once_after_one);
  CHECK(0 < seldom && always < 1);
}

void a_model_learns_the_share_that_is_accepted() {
  for (const int percent : {5, 30, 80, 97}) {
    AcceptanceModel model;
    for (int i = 0; i < 5000; ++i)
      model.learn(evidence_of(4, 3, 3), i * 37 % 100 < percent);
    CHECK(std::abs(model.estimate(evidence_of(4, 3, 3)) - percent / 100.0) <
          0.05);
  }
}

// Where two trees disagree, experience decides which one to believe.
void a_model_learns_whom_to_believe() {
  AcceptanceModel model;
  Evidence first_says_so = evidence_of(8, 4, 4);
  first_says_so.add_context(2, false, 8, 0, 4);
  Evidence other_says_so = evidence_of(8, 0, 4);
  other_says_so.add_context(2, false, 8, 4, 4);
  for (int i = 0; i < 300; ++i) {
    model.learn(first_says_so, false);
    model.learn(other_says_so, true);
  }
  CHECK(model.estimate(first_says_so) < 0.1);
  CHECK(model.estimate(other_says_so) > 0.9);
}

void every_combination_has_a_cell_of_its_own() {
  std::vector<std::uint16_t> cells;
  for (std::size_t tree = 0; tree < Evidence::kNumTrees; ++tree) {
    for (const bool is_shorter : {false, true}) {
      for (const std::uint32_t length : {1, 2, 3, 5, 9, 17, 33}) {
        for (const std::uint32_t total : {1, 2, 3, 5, 9, 17, 33}) {
          Evidence never;
          never.add_context(tree, is_shorter, length, 0, total);
          Evidence always;
          always.add_context(tree, is_shorter, length, total, total);
          CHECK(never.trees == (1u << tree | (is_shorter ? Evidence::kHasShorter : 0u)));
          const std::size_t input = 2 * tree + (is_shorter ? 1 : 0);
          cells.push_back(never.cells[input]);
          cells.push_back(always.cells[input]);
        }
      }
    }
  }
  std::sort(cells.begin(), cells.end());
  CHECK(std::unique(cells.begin(), cells.end()) == cells.end());
}

void every_own_context_has_a_cell_of_its_own() {
  std::vector<std::uint16_t> cells;
  for (const std::uint32_t of_all : {1, 2, 3, 5, 9, 17, 33}) {
    for (const std::uint32_t longest : {0, 1, 2, 3, 5}) {
      for (const int followed : {-1, 0, 1, 2, 3, 5}) {
        Evidence evidence;
        evidence.add_own(followed, longest, of_all);
        CHECK(evidence.trees == 0);
        cells.push_back(evidence.cells[Evidence::kOwn]);
      }
    }
  }
  Evidence last = evidence_of(33, 33, 33);
  last.add_context(Evidence::kNumTrees - 1, true, 33, 33, 33);
  std::sort(cells.begin(), cells.end());
  CHECK(std::unique(cells.begin(), cells.end()) == cells.end());
  CHECK(cells.front() > last.cells[Evidence::kNumContexts - 1]);
}

// Other requests' outputs hold names that are not this one's: experience says how much that matters.
void a_model_learns_what_the_own_text_lacks() {
  AcceptanceModel model;
  Evidence known = evidence_of(4, 3, 3), unknown = evidence_of(4, 3, 3);
  known.add_own(0, 2, 4);
  unknown.add_own(-1, 2, 4);
  for (int i = 0; i < 300; ++i) {
    model.learn(known, true);
    model.learn(unknown, false);
  }
  CHECK(model.estimate(known) > 0.9);
  CHECK(model.estimate(unknown) < 0.1);
}

// Which hashed cells two pieces of evidence have in common.
std::set<int> shared_by(const Evidence &first, const Evidence &second) {
  std::set<int> shared;
  for (int i = 0; i < Evidence::kNumHashed; ++i) {
    const auto input = Evidence::kFirstHashed + static_cast<std::size_t>(i);
    if (first.cells[input] == second.cells[input]) shared.insert(i);
  }
  return shared;
}

void hashed_cells_differ_by_what_they_are_of() {
  struct Place {
    std::int32_t token = 7, before = 2;
    std::uint32_t count = 4;
    int own_length = 1;
    std::uint32_t own_longest = 3;
    std::size_t tree = 0;
  };
  const auto of = [](const Place &place) {
    Evidence evidence;
    evidence.add_context(place.tree, false, 4, place.count, 4);
    evidence.add_own(place.own_length, place.own_longest, 4);
    evidence.add_token(place.token, place.before);
    return evidence;
  };
  using E = Evidence;
  const Evidence first = of({});
  CHECK(shared_by(first, of({})).size() == E::kNumHashed);
  CHECK((shared_by(first, of({.token = 8})) == std::set<int>{E::kBeforeWithShare, E::kProfile}));
  CHECK((shared_by(first, of({.before = 3})) ==
         std::set<int>{E::kToken, E::kTokenInOwn, E::kTokenWithProfile, E::kProfile}));
  CHECK((shared_by(first, of({.count = 1})) == std::set<int>{E::kToken, E::kPair, E::kTokenInOwn}));
  CHECK((shared_by(first, of({.tree = 2})) ==
         std::set<int>{E::kToken, E::kPair, E::kTokenInOwn, E::kBeforeWithShare}));
  CHECK((shared_by(first, of({.own_length = 0})) == std::set<int>{E::kToken, E::kPair, E::kProfile}));
  CHECK((shared_by(first, of({.own_longest = 4})) ==
         std::set<int>{E::kToken, E::kPair, E::kTokenWithProfile, E::kBeforeWithShare, E::kProfile}));
  CHECK(first.kind() == 2 * E::kNumShares + 7);
  CHECK(of({.own_length = -1}).kind() == 7);
  CHECK(of({.count = 0}).kind() == 2 * E::kNumShares);
}

void cells_learn_shares_and_keep_within_their_bits() {
  for (const int percent : {0, 5, 50, 97, 100}) {
    ContextCell context = ContextCell::of(0.5, 6);
    HashedCell hashed{0, HashedCell::kFirstSeen, 3};
    for (int i = 0; i < 2000; ++i) {
      const bool is_accepted = i * 37 % 100 < percent;
      context = context.learned(is_accepted);
      hashed = hashed.learned(3, is_accepted);
    }
    CHECK(context.count == ContextCell::kMostSeen && hashed.count == HashedCell::kMostSeen);
    CHECK(std::abs(squash(context.value()) - percent / 100.0) < 0.03);
    CHECK(std::abs(squash(hashed.value()) - percent / 100.0) < 0.12);
    CHECK(std::abs(hashed.value()) < 4 && std::abs(context.value()) < 9.3f);
  }
  // any bits are a cell
  for (int stretched = -64; stretched < 64; ++stretched) {
    for (int count = 0; count < 16; ++count) {
      HashedCell cell{};
      cell.stretched = static_cast<std::int16_t>(stretched);
      cell.count = static_cast<std::uint16_t>(count);
      CHECK(cell.learned(0, true).stretched >= std::clamp(stretched, -63, 63));
      CHECK(cell.learned(0, false).stretched <= std::clamp(stretched, -63, 63));
    }
  }
}

// Hashed cells are shared, but what one owner has learned says nothing of another one.
void a_hashed_cell_is_worth_nothing_to_another_owner() {
  AcceptanceModel model = AcceptanceModel::without_prior();
  Evidence plain = evidence_of(4, 1, 2);
  const double before = model.estimate(plain);
  Evidence good = evidence_of(4, 1, 2), same_cells = evidence_of(4, 1, 2);
  good.add_token(7, 1);
  same_cells.cells = good.cells;
  for (std::size_t i = 0; i < Evidence::kNumHashed; ++i)
    same_cells.tags[i] = static_cast<std::uint8_t>((good.tags[i] + 1) % 32);
  CHECK(model.estimate(good) == before);
  // many others keep the shares of contexts where they are
  for (int i = 0; i < 200; ++i) {
    model.learn(good, true);
    model.learn(plain, false);
  }
  CHECK(model.estimate(good) > model.estimate(plain) + 0.2);
  CHECK(std::abs(model.estimate(same_cells) - model.estimate(plain)) < 1e-9);
  // an owner with many outcomes stays for some time, then the other one takes over
  model.learn(same_cells, false);
  CHECK(model.estimate(good) > model.estimate(plain) + 0.2);
  for (int i = 0; i < 20; ++i) model.learn(same_cells, false);
  CHECK(std::abs(model.estimate(good) - model.estimate(plain)) < 1e-9);
}

void the_prior_is_what_a_model_starts_from() {
  const AcceptanceModel shipped, untrained = AcceptanceModel::without_prior();
  CHECK(shipped.state() != untrained.state());
  AcceptanceModel restored(shipped.state());
  CHECK(restored.state() == shipped.state());
  // a long match of a request's own tree is worth more to other workflows' stages than the counts alone say
  CHECK(shipped.estimate(evidence_of(40, 1, 1)) > untrained.estimate(evidence_of(40, 1, 1)));
}

struct Bench {
  Automaton own{9};
  Automaton shared{9};
  AcceptanceModel model;
  LearnedDrafter drafter;
  DraftTokens draft;
  std::vector<ScoredToken> scored;
  DraftOptions options{false, 8, 1.0, 1, 0.2};

  std::size_t run(Cursor own_match, Cursor shared_match, const Tokens &before) {
    TreeMatches matches;
    matches[0] = {&own, own_match};
    matches[2] = {&shared, shared_match};
    return drafter.draft(matches, before.back(), model, options, draft, scored);
  }
};

Cursor append(Automaton &automaton, const Tokens &tokens) {
  const Cursor tail = automaton.append({}, tokens);
  automaton.mark_end(tail);
  return tail;
}

// The own tree has the tokens after 1 2, the shared one those after 2 3 4.
Bench of_two_trees() {
  Bench bench;
  append(bench.shared, {3, 4, 5, 6, 7});
  append(bench.shared, {3, 4, 5, 6, 7});
  append(bench.own, {1, 2, 3, 4});
  bench.options.min_prob = 0.001;
  return bench;
}

void check_probabilities(const DraftTokens& draft) {
  CHECK(std::abs(draft.score - std::accumulate(draft.probs.begin(), draft.probs.end(), 0.0)) < 1e-12);
  CHECK(std::is_sorted(draft.probs.rbegin(), draft.probs.rend()));
}

// The most frequent continuation is a name of other requests, and experience tells the second one is right.
void a_chain_takes_a_second_token_that_is_likelier() {
  Bench bench;
  for (const std::int32_t end : {5, 5, 6, 7}) append(bench.shared, {1, 2, end, 8});
  append(bench.own, {6});
  const Cursor tail = append(bench.shared, {1, 2});
  for (int i = 0; i < 200; ++i) {
    bench.run({}, tail, {1, 2});
    learn_from(bench.scored, Tokens{6, 8}, bench.model);
  }
  bench.run({}, tail, {1, 2});
  CHECK((bench.draft.token_ids == Tokens{6, 8}));
  CHECK(bench.scored[0].token == 5 && bench.scored[1].token == 6);  // 7 is less frequent
  CHECK(bench.draft.probs[0] > 0.9);
  learn_from(bench.scored, Tokens{7}, bench.model);
  // a certain token needs no second one
  for (int i = 0; i < 400; ++i) {
    bench.run({}, tail, {1, 2});
    learn_from(bench.scored, Tokens{5, 8}, bench.model);
  }
  bench.run({}, tail, {1, 2});
  CHECK(bench.draft.token_ids.front() == 5 && bench.scored[1].token == 8);
}

void a_chain_stays_with_long_contexts() {
  Bench bench = of_two_trees();
  const Cursor tail = append(bench.own, {9, 1, 2});
  CHECK(bench.run(tail, {}, {9, 1, 2}) == 0);
  CHECK((bench.draft.token_ids == Tokens{3, 4}));
  CHECK((bench.draft.parents == Tokens{-1, 0}));
  CHECK(bench.draft.match_length == 2);
  check_probabilities(bench.draft);
}

void a_chain_asks_trees_with_about_equally_long_contexts() {
  Bench bench = of_two_trees();
  const Cursor own = append(bench.own, {3, 4});
  const Cursor shared = append(bench.shared, {3, 4});
  CHECK(bench.run(own, shared, {3, 4}) == 2);  // no token has followed it in the own tree
  CHECK((bench.draft.token_ids == Tokens{5, 6, 7}));
  append(bench.own, {3, 4, 5});
  CHECK(bench.run(own, shared, {3, 4}) == 0);
  CHECK((bench.draft.token_ids == Tokens{5, 6, 7}));
  CHECK(bench.scored[0].evidence.trees == (1u | 1u << 2));
  CHECK(bench.scored[1].evidence.trees == 1u << 2);
}

void a_tree_goes_from_tree_to_tree() {
  Bench bench = of_two_trees();
  bench.options.is_tree = true;
  const Cursor tail = append(bench.own, {9, 1, 2});
  CHECK(bench.run(tail, {}, {9, 1, 2}) == 0);
  CHECK((bench.draft.token_ids == Tokens{3, 4, 5, 6, 7}));
  CHECK((bench.draft.parents == Tokens{-1, 0, 1, 2, 3}));
  check_probabilities(bench.draft);
}

void nothing_is_drafted_below_the_price_or_the_shortest_match() {
  Bench bench;
  append(bench.own, {1, 2, 3, 4, 5, 6, 7, 8});
  const Cursor tail = append(bench.own, {1, 2});
  bench.options.min_prob = 0;
  bench.run(tail, {}, {1, 2});
  CHECK(bench.draft.token_ids.size() == 6);
  const std::vector<double> probs = bench.draft.probs;
  bench.options.min_prob = probs[2];
  bench.run(tail, {}, {1, 2});
  CHECK(bench.draft.token_ids.size() == 3);
  CHECK(bench.scored.size() == 4); // includes the one below min_prob
  bench.options.min_prob = 1;
  CHECK(bench.run(tail, {}, {1, 2}) == Evidence::kNumTrees);
  CHECK(bench.draft.token_ids.empty() && bench.scored.size() == 1);
  bench.options = {false, 8, 1.0, 3, 0.0};
  bench.run(tail, {}, {1, 2});
  CHECK(bench.draft.token_ids.empty() && bench.scored.empty());
}

void a_tree_takes_the_most_probable_first() {
  Bench bench;
  for (const std::int32_t end : {5, 5, 5, 6})
    append(bench.shared, {1, 2, end, 8});
  const Cursor tail = append(bench.shared, {1, 2});
  bench.options = {true, 4, 1.0, 1, 0.0};
  CHECK(bench.run({}, tail, {1, 2}) == 2);
  CHECK(bench.draft.token_ids.size() == 4);
  CHECK(bench.draft.token_ids[0] == 5 && bench.draft.parents[0] == -1);
  CHECK((std::count(bench.draft.token_ids.begin(), bench.draft.token_ids.end(),
                    6) == 1));
  double first = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int32_t parent = bench.draft.parents[i];
    const double above =
        parent < 0 ? 1 : bench.draft.probs[static_cast<std::size_t>(parent)];
    CHECK(parent < static_cast<std::int32_t>(i));
    CHECK(bench.draft.probs[i] <= above);
    if (i > 0)
      CHECK(bench.draft.probs[i] <= bench.draft.probs[i - 1]);
    if (parent < 0)
      first += bench.draft.probs[i];
  }
  CHECK(first <= 1 + 1e-9); // only one of them can be the next token
}

// The model learns from the scored tokens that were reached: 3 was right,
// 4 was wrong, and 5 was not reached.
void learning_follows_what_came() {
  Bench bench;
  append(bench.own, {1, 2, 3, 4, 5});
  const Cursor tail = append(bench.own, {1, 2});
  bench.options.min_prob = 0.01;
  bench.run(tail, {}, {1, 2});
  CHECK((bench.draft.token_ids == Tokens{3, 4, 5}));
  CHECK(bench.scored.size() == 3);
  std::vector<double> before;
  for (const ScoredToken &one : bench.scored)
    before.push_back(bench.model.estimate(one.evidence));
  AcceptanceModel expected = bench.model;
  expected.learn(bench.scored[0].evidence, true);
  expected.learn(bench.scored[1].evidence, false);
  learn_from(bench.scored, Tokens{3, 9, 5, 7}, bench.model);
  for (const ScoredToken &one : bench.scored) {
    CHECK(bench.model.estimate(one.evidence) ==
          expected.estimate(one.evidence));
  }
  learn_from(bench.scored, {}, bench.model);
  learn_from({}, Tokens{1}, bench.model);
}

} // namespace

int main() {
  before_it_has_learned_a_model_believes_evidence(AcceptanceModel{});
  before_it_has_learned_a_model_believes_evidence(AcceptanceModel::without_prior());
  a_model_learns_the_share_that_is_accepted();
  a_model_learns_whom_to_believe();
  every_combination_has_a_cell_of_its_own();
  every_own_context_has_a_cell_of_its_own();
  a_model_learns_what_the_own_text_lacks();
  hashed_cells_differ_by_what_they_are_of();
  cells_learn_shares_and_keep_within_their_bits();
  a_hashed_cell_is_worth_nothing_to_another_owner();
  the_prior_is_what_a_model_starts_from();
  a_chain_takes_a_second_token_that_is_likelier();
  a_chain_stays_with_long_contexts();
  a_chain_asks_trees_with_about_equally_long_contexts();
  a_tree_goes_from_tree_to_tree();
  nothing_is_drafted_below_the_price_or_the_shortest_match();
  a_tree_takes_the_most_probable_first();
  learning_follows_what_came();
}
