#include "check.hpp"
#include "core/error.hpp"
#include "core/forest/memory_budget.hpp"

#include <condition_variable>
#include <deque>
#include <memory>
#include <numeric>

using namespace agentspec;

namespace {

constexpr std::uint32_t kDepth = 9;
constexpr std::size_t kLarge = std::size_t{1} << 30;

// A budget and what it counts, without a forest.
struct Forest {
  explicit Forest(std::size_t limit_bytes) : budget(limit_bytes, own_changed) {}

  Shared &add_index(GroupId group, std::uint32_t weight = 1) {
    Shared &shared = *indices.emplace_back(std::make_unique<Shared>());
    shared.index = std::make_unique<SuffixIndex>(kDepth, kLarge);
    shared.group = group;
    shared.id = indices.size();
    shared.weight = weight;
    budget.make_place(shared);
    budget.add(shared);
    return shared;
  }
  Request &add_request(GroupId group, std::size_t num_tokens) {
    Request &request =
        requests.emplace_back(NewRequest{requests.size(), group}, kDepth);
    Tokens tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    request.own.end_build(true);
    request.own.append(tokens);
    budget.add(request, request.own.num_bytes());
    budget.balance();
    return request;
  }
  void learn(Shared &shared, std::int32_t first, std::size_t num_tokens) {
    Tokens tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), first);
    const SequenceId sequence = shared.index->open();
    shared.index->append(sequence, tokens);
    shared.index->close(sequence);
    budget.account(shared, num_tokens);
    budget.balance();
  }

  std::condition_variable_any own_changed;
  MemoryBudget budget;
  std::deque<std::unique_ptr<Shared>> indices;
  std::deque<Request> requests;
};

void unknown_groups_are_errors() {
  Forest forest(kLarge);
  CHECK_THROWS(forest.budget.check_group(0), UnknownIdError);
  forest.budget.check_group(forest.budget.create_group(kLarge));
  CHECK_THROWS(forest.budget.group_bytes(1), UnknownIdError);
}

void changes_are_counted_in_the_group_and_in_the_whole() {
  Forest forest(kLarge);
  const GroupId first = forest.budget.create_group(kLarge);
  const GroupId second = forest.budget.create_group(kLarge);
  Shared &shared = forest.add_index(first);
  forest.learn(shared, 0, 500);
  CHECK(forest.budget.group_bytes(first) == shared.index->memory_bytes());
  Request &request = forest.add_request(second, 100);
  CHECK(forest.budget.group_bytes(second) == request.own.num_bytes());
  Model model(second, AcceptanceModel());
  forest.budget.add_model(model);
  CHECK(forest.budget.group_bytes(second) == request.own.num_bytes() + sizeof(Model));
  CHECK(forest.budget.bytes() == forest.budget.group_bytes(first) +
                                     forest.budget.group_bytes(second));
  forest.budget.remove(shared);
  forest.budget.remove(request);
  forest.budget.remove_model(model);
  CHECK(forest.budget.bytes() == 0);
  const std::size_t none[] = {0, 0};
  forest.budget.check_totals(none);
}

// A batch may still hold a request that another thread has finished.
void a_finished_request_is_not_counted() {
  Forest forest(kLarge);
  const GroupId group = forest.budget.create_group(kLarge);
  Request &request = forest.add_request(group, 10);
  request.scored.last.resize(3);
  forest.budget.account_scored(request);
  CHECK(forest.budget.bytes() > request.own.num_bytes());
  forest.budget.remove(request);
  request.is_finished = true;
  forest.budget.account_scored(request);
  CHECK(forest.budget.bytes() == 0);
}

// Among the indices of a group the heaviest makes room; requests come last.
void the_largest_index_makes_room_first() {
  Forest forest(kLarge);
  const GroupId group = forest.budget.create_group(1 << 18);
  Shared &small = forest.add_index(group);
  Shared &large = forest.add_index(group);
  Request &request = forest.add_request(group, 200);
  forest.learn(small, 0, 300);
  const std::size_t before = small.bytes;
  for (std::int32_t i = 0; i < 40; ++i)
    forest.learn(large, 1000 * i, 500);
  CHECK(forest.budget.group_bytes(group) <= 1 << 18);
  CHECK(small.bytes == before && bool(request.own));
  CHECK(large.index->num_tokens() < 40 * 500);
}

void the_largest_own_index_is_dropped_when_nothing_can_be_evicted() {
  Forest forest(kLarge);
  const GroupId group = forest.budget.create_group(1 << 18);
  const GroupId other = forest.budget.create_group(kLarge);
  Request &elsewhere = forest.add_request(other, 4000);
  Request &small = forest.add_request(group, 200);
  Request &large = forest.add_request(group, 1000);
  CHECK(bool(small.own) && bool(large.own));
  Request &removed = forest.add_request(group, 10);
  forest.budget.remove(removed);
  Request &last = forest.add_request(group, 9000);
  CHECK(!last.own && last.own.is_dropped());
  CHECK(last.bytes == 0 && forest.budget.group_bytes(group) <= 1 << 18);
  CHECK(bool(small.own) && bool(large.own) && bool(elsewhere.own));
}

// Its excess can't be evicted from the other groups.
void a_group_beyond_its_limit_is_charged_with_the_limit() {
  Forest forest(1 << 20);
  const GroupId tiny = forest.budget.create_group(100);
  const GroupId group = forest.budget.create_group(1 << 20);
  const Model model(tiny, AcceptanceModel());
  for (int i = 0; i < 500; ++i)
    forest.budget.add_model(model);
  forest.budget.balance();
  CHECK(forest.budget.group_bytes(tiny) > 1 << 20);
  CHECK(!forest.budget.is_exhausted(group) && forest.budget.is_exhausted(tiny));
  CHECK(bool(forest.add_request(group, 200).own));
}

} // namespace

int main() {
  unknown_groups_are_errors();
  changes_are_counted_in_the_group_and_in_the_whole();
  a_finished_request_is_not_counted();
  the_largest_index_makes_room_first();
  the_largest_own_index_is_dropped_when_nothing_can_be_evicted();
  a_group_beyond_its_limit_is_charged_with_the_limit();
}
