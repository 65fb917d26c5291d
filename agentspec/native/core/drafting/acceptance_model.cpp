#include "core/drafting/acceptance_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr float kLearningRate = 0.02f;
constexpr float kCalibrationRate = 0.02f;
constexpr float kFirstWeight = 0.25f;
constexpr float kFirstWeightOfWider = 0.15f;  // of the trees that hold other stages' outputs
constexpr std::uint16_t kPriorCount = 6;      // weight of a cell's first estimate, in tokens
constexpr std::uint16_t kMostSeen = 255;      // count limit of a context's cell
constexpr std::uint16_t kMostNamed = 30;      // count limit of a token's cell
constexpr float kMostWeight = 1e6f;           // beyond the reach of learning
constexpr double kLeastProb = 1e-4;           // the highest is 1 - kLeastProb

double squash(double x) { return 1 / (1 + std::exp(-x)); }

float stretch(double p) {
  p = std::clamp(p, kLeastProb, 1 - kLeastProb);
  return static_cast<float>(std::log(p / (1 - p)));
}

/// Step of n among 1, 2, 3-4, 5-8, 9-16, ...; the last step is open.
std::size_t step_of(std::uint32_t n, std::size_t num_steps) {
  return std::min<std::size_t>(std::bit_width(n - 1), num_steps - 1);
}

/// Step of the share count / total, from 0 (never) to 7 (always).
std::size_t share_step(std::uint32_t count, std::uint32_t total) {
  if (count == 0) return 0;
  if (count == total) return 7;
  const double share = static_cast<double>(count) / total;
  return share >= 0.9 ? 6 : share >= 0.75 ? 5 : share >= 0.5 ? 4 : share >= 0.25 ? 3 : share >= 0.1 ? 2 : 1;
}

std::uint32_t mixed(std::uint32_t hash, std::int32_t token) {
  return (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B1u;
}

}  // namespace

void Evidence::add_context(std::size_t tree, bool is_shorter, std::uint32_t length, std::uint32_t count,
                           std::uint32_t total) {
  using Model = AcceptanceModel;
  const std::size_t input = 2 * tree + (is_shorter ? 1 : 0);
  const std::size_t row =
      (input * Model::kNumLengths + step_of(length, Model::kNumLengths)) * Model::kNumTotals +
      step_of(total, Model::kNumTotals);
  cells[input] = static_cast<std::uint16_t>(row * Model::kNumShares + share_step(count, total));
  trees = static_cast<std::uint8_t>(trees | 1u << tree);
}

void Evidence::add_names(std::int32_t token, std::span<const std::int32_t, 2> before) {
  using Model = AcceptanceModel;
  constexpr std::size_t kFirst = kNumContexts * Model::kNumLengths * Model::kNumTotals * Model::kNumShares;
  std::uint32_t hash = mixed(0, token);
  for (std::size_t i = 0; i < kNumNames; ++i) {
    const std::size_t cell = hash >> (32 - std::bit_width(Model::kNumNameCells - 1));
    cells[kNumContexts + i] = static_cast<std::uint16_t>(kFirst + i * Model::kNumNameCells + cell);
    if (i < before.size()) hash = mixed(hash, before[i]);
  }
}

AcceptanceModel::AcceptanceModel() {
  constexpr std::size_t kFirstWider = 2 * (Evidence::kStage + 1);
  static constexpr double kLengths[] = {1, 2, 3, 6, 12, 24, 48};
  static constexpr double kTotals[] = {1, 2, 3, 6, 12, 24, 128};
  static constexpr double kShares[] = {0, 0.05, 0.17, 0.37, 0.62, 0.82, 0.95, 1};
  std::size_t cell = 0;
  for (std::size_t input = 0; input < Evidence::kNumContexts; ++input) {
    for (const double length : kLengths) {
      for (const double total : kTotals) {
        for (const double share : kShares) {
          const double p =
              share == 0 ? 0.3 / (total + 2) : (share * total + 0.02) / (total + 0.04 + 3 / length);
          cells_[cell++] = make_cell(p, kPriorCount);
        }
      }
    }
  }
  std::fill(cells_.begin() + static_cast<std::ptrdiff_t>(cell), cells_.end(), make_cell(0.5, 2));
  for (Weights& weights : weights_) {
    weights.of.fill(kFirstWeight);
    std::fill_n(weights.of.begin() + kFirstWider, Evidence::kNumContexts - kFirstWider, kFirstWeightOfWider);
    weights.bias = 0;
  }
  for (auto& steps : calibration_) {
    for (std::size_t i = 0; i < kNumSteps; ++i) {
      steps[i] = static_cast<float>(squash((static_cast<double>(i) - 16) / 2));
    }
  }
}

AcceptanceModel::AcceptanceModel(std::span<const std::byte> state) {
  static_assert(std::is_trivially_copyable_v<AcceptanceModel>);
  static_assert(sizeof(AcceptanceModel) == sizeof(cells_) + sizeof(weights_) + sizeof(calibration_));
  if (state.size() != sizeof(*this)) {
    throw ConfigError("the state of a model has " + std::to_string(sizeof(*this)) + " bytes, not " +
                      std::to_string(state.size()));
  }
  std::memcpy(static_cast<void*>(this), state.data(), state.size());
  if (!is_sound()) throw ConfigError("the state of a model holds a number that no model learns");
}

// Comparisons with NaN are false.
bool AcceptanceModel::is_sound() const {
  const auto is_weight = [](float weight) { return std::abs(weight) <= kMostWeight; };
  for (const Weights& weights : weights_) {
    if (!is_weight(weights.bias) || !std::ranges::all_of(weights.of, is_weight)) return false;
  }
  return std::ranges::all_of(calibration_, [](const auto& steps) {
    return std::ranges::all_of(steps, [](float p) { return p >= 0 && p <= 1; });
  });
}

AcceptanceModel::Mixture AcceptanceModel::mix(const Evidence& evidence) const {
  const Weights& weights = weights_[evidence.trees];
  float x = weights.bias;
  for (std::size_t i = 0; i < Evidence::kNumInputs; ++i) {
    if (evidence.cells[i] != Evidence::kNothing) x += weights.of[i] * stretched(cells_[evidence.cells[i]]);
  }
  const float place = std::clamp(2 * x + 16, 0.0f, 31.999f);
  const auto step = static_cast<std::size_t>(place);
  return {x, squash(x), step, place - static_cast<float>(step)};
}

double AcceptanceModel::estimate(const Evidence& evidence) const {
  const Mixture mixture = mix(evidence);
  const auto& steps = calibration_[std::min<std::size_t>(evidence.depth, kNumDepths - 1)];
  const double calibrated =
      steps[mixture.step] * (1 - mixture.fraction) + steps[mixture.step + 1] * mixture.fraction;
  return std::clamp((mixture.p + calibrated) / 2, kLeastProb, 1 - kLeastProb);
}

void AcceptanceModel::learn(const Evidence& evidence, bool is_accepted) {
  const Mixture mixture = mix(evidence);
  const auto error = static_cast<float>((is_accepted ? 1 : 0) - mixture.p);
  Weights& weights = weights_[evidence.trees];
  for (std::size_t i = 0; i < Evidence::kNumInputs; ++i) {
    if (evidence.cells[i] == Evidence::kNothing) continue;
    Cell& cell = cells_[evidence.cells[i]];
    weights.of[i] += kLearningRate * error * stretched(cell);
    adapt(cell, is_accepted, i < Evidence::kNumContexts ? kMostSeen : kMostNamed);
  }
  weights.bias += kLearningRate * error;
  auto& steps = calibration_[std::min<std::size_t>(evidence.depth, kNumDepths - 1)];
  const float truth = is_accepted ? 1 : 0;
  steps[mixture.step] += kCalibrationRate * (1 - mixture.fraction) * (truth - steps[mixture.step]);
  steps[mixture.step + 1] += kCalibrationRate * mixture.fraction * (truth - steps[mixture.step + 1]);
}

AcceptanceModel::Cell AcceptanceModel::make_cell(double p, std::uint16_t count) {
  return {static_cast<std::int16_t>(std::lround(stretch(p) * kUnits)), count};
}

void AcceptanceModel::adapt(Cell& cell, bool is_accepted, std::uint16_t limit) {
  const double share = squash(stretched(cell));
  const auto count = static_cast<std::uint16_t>(std::min(cell.count + 1, int{limit}));
  cell = make_cell(share + ((is_accepted ? 1 : 0) - share) / (cell.count + 1), count);
}

}  // namespace agentspec
