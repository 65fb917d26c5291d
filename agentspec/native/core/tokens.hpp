// Token ids: int32, none negative.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/error.hpp"

namespace agentspec {

/// Throws TokenError, which names the first negative id. O(tokens).
inline void check_tokens(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0) throw TokenError("a token id is never negative, but one is " + std::to_string(token));
  }
}

}  // namespace agentspec
