#include "check.hpp"
#include "core/forest/memory_budget.hpp"

#include <algorithm>
#include <array>
#include <random>

using namespace agentspec;

namespace {

struct Thing {
  std::size_t size;
  std::size_t id;
  std::array<std::size_t, 2> places{};

  bool is_larger(const Thing &other, std::size_t) const {
    return size > other.size || (size == other.size && id < other.id);
  }
};

// Things are added, removed and resized. Every second one is in the other
// ranking too.
void the_largest_is_always_first() {
  std::mt19937 random(1);
  std::vector<Thing> things;
  for (std::size_t id = 0; id < 60; ++id)
    things.push_back({random() % 20, id});
  std::array<std::vector<Thing *>, 2> held;
  std::array<LargestFirst<Thing>, 2> rankings{LargestFirst<Thing>(0),
                                              LargestFirst<Thing>(1)};
  for (int turn = 0; turn < 20000; ++turn) {
    Thing &thing = things[random() % things.size()];
    const bool is_known = std::ranges::count(held[0], &thing) > 0;
    const std::size_t num_rankings = 1 + thing.id % 2;
    if (is_known && random() % 3 > 0)
      thing.size = random() % 20;
    for (std::size_t i = 0; i < num_rankings; ++i) {
      if (!is_known) {
        rankings[i].make_place();
        rankings[i].add(thing);
        held[i].push_back(&thing);
      } else if (turn % 4 == 0) {
        rankings[i].remove(thing);
        std::erase(held[i], &thing);
      } else {
        rankings[i].update(thing);
      }
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const auto first = std::ranges::find_if(held[i], [&](const Thing *one) {
        return std::ranges::none_of(
            held[i], [&](const Thing *other) { return other->is_larger(*one, 0); });
      });
      CHECK(rankings[i].first() ==
            (first == held[i].end() ? nullptr : *first));
    }
  }
}

} // namespace

int main() { the_largest_is_always_first(); }
