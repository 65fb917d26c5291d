// Token ids, and the core's exceptions: one per class of agentspec.errors that they become in Python.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace agentspec {

/// A setting or an argument is out of range.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A token array holds a negative id, or a string is longer than the index counts.
struct TokenError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// No live request, sequence or index has this id.
struct UnknownIdError : std::out_of_range {
  using std::out_of_range::out_of_range;
};

/// A live request already has this id, or a batch names one twice.
struct DuplicateIdError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// The process was forked since the core was made.
struct ForkedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An index has reached the size that its 32-bit references can address.
struct CapacityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// check_integrity() found a broken invariant: a bug of ours.
struct IntegrityError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Stands before the first token of every output in the shared indices, and occurs nowhere else. An output's
/// first tokens are then another context than the same tokens further on.
constexpr std::int32_t kBeginToken = -2;

/// Throws TokenError, which names the first negative id. O(tokens).
inline void check_tokens(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0) throw TokenError("a token id is never negative, but one is " + std::to_string(token));
  }
}

}  // namespace agentspec
