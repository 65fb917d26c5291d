// Token ids: int32, none negative.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/error.hpp"

namespace agentspec {

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
