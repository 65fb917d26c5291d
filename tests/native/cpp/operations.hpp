// A byte string as operations on a ForestCore and on its naive model at once, compared after every one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

struct OperationCounts {
  std::size_t num_operations = 0;
  std::size_t num_wrong_calls = 0;  // that threw and changed nothing
  std::size_t num_drafts = 0;       // of one request each, empty ones included
  std::size_t num_drafted = 0;      // of these, those that are not empty
  std::size_t num_shared = 0;       // of these, those that a shared index gave
  std::size_t num_tokens = 0;       // drafted in all
  std::size_t num_matched = 0;      // sum of the match lengths

  OperationCounts& operator+=(const OperationCounts& other);
};

/// The first byte of a run in which nothing is ever evicted and every draft has to be that of the brute
/// force, token by token. Others have tiny budgets, so that eviction never ends: of indices, or of groups and
/// all.
constexpr std::uint8_t kExactRun = 0;

/// Runs the operations that the bytes stand for; every byte string stands for some. Throws Finding,
/// IntegrityError, or whatever the core throws in a call that is right.
OperationCounts run_operations(std::span<const std::uint8_t> bytes);

}  // namespace agentspec
