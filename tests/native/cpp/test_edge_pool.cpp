#include "check.hpp"
#include "core/index/edge_pool.hpp"

#include <map>
#include <random>

using namespace agentspec;

namespace {

void check_equal(const EdgePool &pool, const EdgeList &list,
                 const std::map<std::int32_t, StateId> &expected) {
  std::map<std::int32_t, StateId> seen;
  pool.for_each(list, [&](const Edge &edge) {
    CHECK(seen.emplace(edge.token, edge.target).second);
  });
  CHECK(seen == expected);
  CHECK(expected.empty() == list.is_empty());
  CHECK(expected.empty() || expected.contains(list.best_token));
}

// Compares random edges of one list with a map, over all block sizes, growing
// and shrinking.
void a_list_behaves_like_a_map() {
  std::mt19937 random(1);
  EdgePool pool;
  EdgeList list;
  std::map<std::int32_t, StateId> expected;
  for (int turn = 0; turn < 20000; ++turn) {
    const bool is_growing = turn / 2000 % 2 == 0;
    const auto token = static_cast<std::int32_t>(random() % 300);
    const StateId target = static_cast<StateId>(random() % 1000);
    if (!expected.contains(token)) {
      CHECK(pool.find(list, token) == nullptr);
      if (random() % 4 < (is_growing ? 3 : 1)) {
        pool.add(list, token, target);
        expected[token] = target;
      }
    } else if (random() % 4 < (is_growing ? 1 : 3)) {
      pool.remove(list, token);
      expected.erase(token);
    } else if (random() % 2 == 0) {
      pool.promote(list, token);
      CHECK(list.best_token == token && list.best_target == expected[token]);
    } else {
      CHECK(*pool.find(list, token) == expected[token]);
      *pool.find(list, token) = target;
      expected[token] = target;
    }
    if (turn % 10 == 0)
      check_equal(pool, list, expected);
    CHECK(pool.used_bytes() == EdgePool::block_slots(list) * sizeof(Edge));
    pool.move_down(list);
    CHECK(pool.used_bytes() <= pool.extent_bytes());
  }
}

void a_copy_is_independent() {
  EdgePool pool;
  EdgeList list;
  for (std::int32_t token = 0; token < 40; ++token)
    pool.add(list, token, static_cast<StateId>(token));
  EdgeList copied = pool.copy(list);
  for (std::int32_t token = 0; token < 40; token += 2)
    pool.remove(copied, token);
  for (std::int32_t token = 0; token < 40; ++token) {
    CHECK(*pool.find(list, token) == static_cast<StateId>(token));
    CHECK((pool.find(copied, token) == nullptr) == (token % 2 == 0));
  }
  pool.release(list);
  pool.release(copied);
  CHECK(pool.used_bytes() == 0 && list.is_empty());
}

void rivals_are_bounded_in_large_lists_only() {
  EdgePool pool;
  EdgeList list;
  pool.add(list, 1, 1);
  pool.note_rival(list, 7);
  CHECK(pool.rival_bound(list) == ~0u);
  for (std::int32_t token = 2; token < 40; ++token)
    pool.add(list, token, 1);
  pool.set_rival_bound(list, 3);
  pool.note_rival(list, 2);
  CHECK(pool.rival_bound(list) == 3);
  for (std::int32_t token = 40; token < 400; ++token)
    pool.add(list, token, 1);
  pool.note_rival(list, 9);
  CHECK(pool.rival_bound(list) == 9);
}

} // namespace

int main() {
  a_list_behaves_like_a_map();
  a_copy_is_independent();
  rivals_are_bounded_in_large_lists_only();
}
