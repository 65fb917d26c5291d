// Compares drafts of random requests with Algorithm 1, run by brute force, until enough have been compared:
// test_million_steps [number of drafts] [seed].

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

#include "operations.hpp"

using namespace agentspec;

namespace {

std::vector<std::uint8_t> random_run(std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(1000 + random() % 5000);  // some hundred operations on a handful of texts
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  bytes[0] = kExactRun;
  return bytes;
}

void print(const OperationCounts& counts) {
  const auto per_draft = [&](std::size_t n) {
    return static_cast<double>(n) / static_cast<double>(counts.num_drafted);
  };
  std::printf(
      "%zu drafts equal brute force: %.1f tokens after a match of %.1f, %.0f %% from shared indices\n",
      counts.num_drafted, per_draft(counts.num_tokens), per_draft(counts.num_matched),
      100 * per_draft(counts.num_shared));
  std::printf("%zu times neither drafts anything\n", counts.num_drafts - counts.num_drafted);
  std::printf("%zu operations, %zu of them wrong calls\n", counts.num_operations, counts.num_wrong_calls);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const std::uint64_t first_seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  OperationCounts counts;
  for (std::uint64_t seed = first_seed; counts.num_drafted < wanted; ++seed) {
    std::mt19937_64 random(seed);
    try {
      counts += run_operations(random_run(random));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), error.what());
      return 1;
    }
  }
  print(counts);
}
