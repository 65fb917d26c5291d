// A model of the probability that a drafted token is accepted, learned from earlier drafts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/drafting/evidence.hpp"

namespace agentspec {

/// Logistic mixing of adaptive estimates, as in context-mixing compressors (Mahoney, PAQ). Each cell keeps
/// the share of accepted tokens among those that fell into it. The shares are mixed in the logistic domain.
/// The weights are the sum of two sets: one for each set of trees that have evidence, and one for each kind
/// of evidence. They are learned by gradient descent on coding cost, in smaller steps the more outcomes a set
/// has seen. The result is calibrated by earlier outcomes, per depth within the draft. 41 KiB. Not
/// thread-safe, but estimates may run in parallel.
class AcceptanceModel {
 public:
  /// Starts from the shipped prior: what the stages of other workflows have learned.
  AcceptanceModel() : AcceptanceModel(of_prior()) {}

  /// Starts without the prior, with estimates that trust the counts more, the more evidence there is.
  static AcceptanceModel without_prior();

  /// Restores a model from its state(). Throws ConfigError if `state` can't be one.
  explicit AcceptanceModel(std::span<const std::byte> state);
  /// Returns everything learned so far as bytes that any machine reads, little-endian: the cells of contexts
  /// and the hashed cells as uint16; for each set of weights 17 weights, the bias and the number of outcomes;
  /// for each depth the 33 steps of the calibration, all as float32. O(its size). Throws std::bad_alloc.
  std::vector<std::byte> state() const;

  /// Returns a probability strictly between 0 and 1. O(inputs).
  double estimate(const Evidence& evidence) const;
  /// Learns whether the token was accepted, or another one instead. O(inputs).
  void learn(const Evidence& evidence, bool is_accepted);

 private:
  static constexpr std::size_t kNumDepths = 8;
  static constexpr std::size_t kNumSteps = 33;  // of the final calibration, which interpolates between them
  static constexpr std::size_t kBias = Evidence::kNumInputs;       // the input that is always 1
  static constexpr std::size_t kNumWeights = (kBias / 4 + 1) * 4;  // with zeros, for vector units
  static constexpr std::size_t kNumSets = Evidence::kNumTreeSets + Evidence::kNumKinds;  // of weights
  static constexpr std::size_t kStateBytes =
      2 * (Evidence::kNumContextCells + Evidence::kNumOwnCells + Evidence::kNumHashedCells) +
      4 * (kNumSets * (kBias + 2) + kNumDepths * kNumSteps);

  /// Stretched shares, 0 where there is no evidence; then 1 and zeros.
  using Inputs = std::array<float, kNumWeights>;
  struct Weights {
    std::array<float, kNumWeights> of;
    float num_learned;  // outcomes
  };
  struct Mixture {
    float x;           // in the logistic domain
    float p;           // before the final calibration
    std::size_t step;  // of the calibration
    float fraction;    // of the way to the next step
  };

  struct Blank {};
  explicit AcceptanceModel(Blank);
  static const AcceptanceModel& of_prior();
  bool is_sound() const;
  static auto& weights_of(auto& model, std::size_t set);
  Inputs inputs(const Evidence& evidence) const;
  Mixture mix(const Evidence& evidence, const Inputs& inputs) const;
  void adapt(const Evidence& evidence, bool is_accepted);

  std::array<ContextCell, Evidence::kNumContextCells + Evidence::kNumOwnCells> contexts_;
  std::array<HashedCell, Evidence::kNumHashedCells> hashed_;
  std::array<Weights, Evidence::kNumTreeSets> by_trees_;
  std::array<Weights, Evidence::kNumKinds> by_kind_;
  std::array<std::array<float, kNumSteps>, kNumDepths> calibration_;
};

}  // namespace agentspec
