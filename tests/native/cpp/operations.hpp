// Runs a byte string as operations on a ForestCore and on its naive model, compared after every one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

struct OperationCounts {
  std::size_t num_operations = 0;
  std::size_t num_wrong_calls = 0;  // that threw and changed nothing
  std::size_t num_drafts = 0;       // of one request each, empty ones included
  std::size_t num_drafted = 0;      // those that are not empty
  std::size_t num_shared = 0;       // of num_drafted, those from a shared index
  std::size_t num_tokens = 0;       // drafted in all
  std::size_t num_matched = 0;      // sum of the match lengths

  OperationCounts& operator+=(const OperationCounts& other);
};

/// The first byte of a run without evictions, where every draft must equal that of the brute force, token by
/// token. Other runs have tiny budgets, so that evictions never end: of indices, or of groups and the forest
/// too.
constexpr std::uint8_t kExactRun = 0;

/// Runs the operations that the bytes encode; every byte string encodes some. Throws Finding, IntegrityError,
/// or any error of the core in a valid call.
OperationCounts run_operations(std::span<const std::uint8_t> bytes);

}  // namespace agentspec
