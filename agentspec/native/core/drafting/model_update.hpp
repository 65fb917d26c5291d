// What one engine's model of acceptance has learned, for the models of the same stage in other engines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/cells.hpp"
#include "core/drafting/evidence.hpp"

namespace agentspec {

/// The parts of a model that have changed, each with the outcomes that changed it. Holds no text, but hashes:
/// 19 bits of single tokens, and of pairs, that were drafted.
struct ModelUpdate {
  static constexpr float kWeightUnits = 1000;
  static constexpr std::size_t kNumWeights = Evidence::kNumInputs + 1;  // the last one is of the bias

  template <class Cell>
  struct Placed {
    std::uint16_t place;
    Cell cell;  // its count is that of the outcomes since the update before
  };
  struct Weights {
    std::uint8_t set;  // of trees, or behind them of kinds
    std::uint32_t num_learned;
    std::array<std::int16_t, kNumWeights> of;  // in units of 1 / kWeightUnits
  };

  std::uint32_t num_outcomes = 0;
  std::vector<Placed<ContextCell>> contexts;  // by place, as the others
  std::vector<Placed<HashedCell>> hashed;
  std::vector<Weights> weights;

  /// Returns it as bytes, three for most cells. O(its size). Throws std::bad_alloc.
  std::vector<std::byte> encoded() const;
  /// The inverse. Throws ConfigError for anything that encoded() does not return.
  static ModelUpdate decoded(std::span<const std::byte> bytes);
};

}  // namespace agentspec
