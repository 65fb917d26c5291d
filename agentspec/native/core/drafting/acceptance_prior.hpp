// What a model of acceptance starts from: figures of many stages of several workflows, without any text.
#pragma once

#include <cstdint>
#include <span>

namespace agentspec {

/// Means over the stages of recorded workflows, in the order and sizes of AcceptanceModel's members.
struct AcceptancePrior {
  static constexpr float kContextUnits = 12;
  static constexpr float kWeightUnits = 1000;
  static constexpr float kCalibrationUnits = 10000;

  std::span<const std::int8_t> contexts;      // log(p / (1 - p)) of each cell, in units of 1 / kContextUnits
  std::span<const std::int16_t> weights;      // of each set of trees: those of the inputs, and the bias
  std::span<const std::int16_t> calibration;  // of each depth: the probability at each step
};

/// The shipped prior, which `python -m benchmarks prior` writes.
AcceptancePrior acceptance_prior();

}  // namespace agentspec
