// What a model of acceptance starts from: figures of many stages of several workflows, without any text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace agentspec {

/// Means over the stages of recorded workflows, in the order and sizes of AcceptanceModel's members.
struct AcceptancePrior {
  static constexpr float kContextUnits = 11;
  static constexpr float kWeightUnits = 1000;
  static constexpr float kCalibrationUnits = 10000;

  // The sizes are those of AcceptanceModel, which checks them.
  static constexpr std::size_t kNumContexts = 4130;
  static constexpr std::size_t kNumWeights = 1728;
  static constexpr std::size_t kNumCalibration = 264;

  std::array<std::int8_t, kNumContexts> contexts;         // log(p / (1 - p)), in units of 1 / kContextUnits
  std::array<std::int16_t, kNumWeights> weights;          // of each set of trees, then of each kind
  std::array<std::int16_t, kNumCalibration> calibration;  // of each depth: the probability at each step
};

/// The shipped prior, which `python -m lab prior` writes.
extern const AcceptancePrior kAcceptancePrior;

}  // namespace agentspec
