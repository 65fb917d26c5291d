#include "core/drafting/acceptance_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/drafting/acceptance_prior.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr float kFirstRate = 0.05f;  // of learning; it falls with the outcomes that a set of weights has seen
constexpr float kLeastRate = 0.005f;
constexpr float kHalfRateAt = 200;
constexpr float kCalibrationRate = 0.02f;
constexpr float kFirstWeight = 0.35f;
constexpr float kFirstWeightOfWider = 0.15f;  // of the trees that hold other stages' outputs
constexpr std::uint16_t kUntrainedCount = 6;  // weight of a cell's first estimate, in tokens
constexpr std::uint16_t kPriorCount = 12;     // the same with the prior
constexpr std::uint16_t kMostSeen = 255;      // count limit of a context's cell
constexpr std::uint16_t kMostNamed = 10;      // count limit of a token's cell
constexpr std::uint16_t kFirstNamed = 2;      // weight of its first estimate
constexpr std::uint16_t kLeastProtected = 5;  // a token's cell with so many outcomes is kept for some time
constexpr float kMostLearned = 1e6f;          // outcomes that are counted
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
  trees = static_cast<std::uint8_t>(trees | 1u << tree | (is_shorter ? kHasShorter : 0u));
}

void Evidence::add_own(int length, std::uint32_t longest, std::uint32_t of_all) {
  using Model = AcceptanceModel;
  const auto own_step = [](std::uint32_t n) {
    return n == 0 ? 0 : step_of(n, Model::kNumOwnLengths - 2) + 1;
  };
  const std::size_t followed = length < 0 ? 0 : own_step(static_cast<std::uint32_t>(length)) + 1;
  const std::size_t row = followed * (Model::kNumOwnLengths - 1) + own_step(longest);
  cells[kOwn] = static_cast<std::uint16_t>(Model::kNumContextCells + row * Model::kNumLengths +
                                           step_of(of_all, Model::kNumLengths));
}

void Evidence::add_names(std::int32_t token, std::span<const std::int32_t, 2> before) {
  using Model = AcceptanceModel;
  std::uint32_t hash = mixed(0, token);
  for (std::size_t i = 0; i < kNumNames; ++i) {
    const std::size_t cell = std::uint64_t{hash} * Model::kNumNameCells >> 32;
    cells[kFirstName + i] = static_cast<std::uint16_t>(i * Model::kNumNameCells + cell);
    tags[i] = static_cast<std::uint16_t>(hash * 0x85EBCA6Bu >> (32 - Model::kTagBits));
    if (i < before.size()) hash = mixed(hash, before[i]);
  }
}

AcceptanceModel AcceptanceModel::without_prior() { return AcceptanceModel(Blank{}); }

AcceptanceModel::AcceptanceModel(Blank) {
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
          contexts_[cell++] = make_cell(p, kUntrainedCount);
        }
      }
    }
  }
  std::fill(contexts_.begin() + kNumContextCells, contexts_.end(), make_cell(0.5, kUntrainedCount));
  names_.fill({0, kFirstNamed, 0});
  for (Weights& weights : weights_) {
    weights.of.fill(kFirstWeight);
    std::fill_n(weights.of.begin() + kFirstWider, Evidence::kNumContexts - kFirstWider, kFirstWeightOfWider);
    weights.bias = weights.num_learned = 0;
  }
  for (auto& steps : calibration_) {
    for (std::size_t i = 0; i < kNumSteps; ++i) {
      steps[i] = static_cast<float>(squash((static_cast<double>(i) - 16) / 2));
    }
  }
}

const AcceptanceModel& AcceptanceModel::of_prior() {
  static const AcceptanceModel model = [] {
    AcceptanceModel made{Blank{}};
    const AcceptancePrior& prior = kAcceptancePrior;
    static_assert(AcceptancePrior::kNumContexts == kNumContextCells + kNumOwnCells);
    static_assert(AcceptancePrior::kNumWeights ==
                  std::tuple_size_v<decltype(weights_)> * (Evidence::kNumInputs + 1));
    static_assert(AcceptancePrior::kNumCalibration == kNumDepths * kNumSteps);
    for (std::size_t i = 0; i < made.contexts_.size(); ++i)
      made.contexts_[i] = make_cell(squash(prior.contexts[i] / AcceptancePrior::kContextUnits), kPriorCount);
    const std::int16_t* weight = prior.weights.data();
    for (Weights& weights : made.weights_) {
      for (float& one : weights.of) one = *weight++ / AcceptancePrior::kWeightUnits;
      weights.bias = *weight++ / AcceptancePrior::kWeightUnits;
    }
    const std::int16_t* share = prior.calibration.data();
    for (auto& steps : made.calibration_) {
      for (float& one : steps) one = *share++ / AcceptancePrior::kCalibrationUnits;
    }
    return made;
  }();
  return model;
}

AcceptanceModel::AcceptanceModel(std::span<const std::byte> state) {
  static_assert(std::is_trivially_copyable_v<AcceptanceModel>);
  static_assert(sizeof(AcceptanceModel) ==
                sizeof(contexts_) + sizeof(names_) + sizeof(weights_) + sizeof(calibration_));
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
    if (!(weights.num_learned >= 0 && weights.num_learned <= kMostLearned)) return false;
  }
  return std::ranges::all_of(calibration_, [](const auto& steps) {
    return std::ranges::all_of(steps, [](float p) { return p >= 0 && p <= 1; });
  });
}

float AcceptanceModel::input(const Evidence& evidence, std::size_t i) const {
  const std::uint16_t cell = evidence.cells[i];
  if (cell == Evidence::kNothing) return 0;
  if (i < Evidence::kFirstName) return stretched(contexts_[cell]);
  return names_[cell].tag == evidence.tags[i - Evidence::kFirstName] ? stretched(names_[cell]) : 0;
}

AcceptanceModel::Mixture AcceptanceModel::mix(const Evidence& evidence) const {
  const Weights& weights = weights_[evidence.trees];
  float x = weights.bias;
  for (std::size_t i = 0; i < Evidence::kNumInputs; ++i) x += weights.of[i] * input(evidence, i);
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
  const float rate = std::max(kLeastRate, kFirstRate / (1 + weights.num_learned / kHalfRateAt));
  for (std::size_t i = 0; i < Evidence::kNumInputs; ++i) {
    if (evidence.cells[i] == Evidence::kNothing) continue;
    weights.of[i] += rate * error * input(evidence, i);
    adapt(evidence, i, is_accepted);
  }
  weights.bias += rate * error;
  weights.num_learned = std::min(weights.num_learned + 1, kMostLearned);
  auto& steps = calibration_[std::min<std::size_t>(evidence.depth, kNumDepths - 1)];
  const float truth = is_accepted ? 1 : 0;
  steps[mixture.step] += kCalibrationRate * (1 - mixture.fraction) * (truth - steps[mixture.step]);
  steps[mixture.step + 1] += kCalibrationRate * mixture.fraction * (truth - steps[mixture.step + 1]);
}

AcceptanceModel::Cell AcceptanceModel::make_cell(double p, std::uint16_t count) {
  return {static_cast<std::int16_t>(std::lround(stretch(p) * kUnits)), count};
}

// A name takes over the cell of another one that has few outcomes. Otherwise it makes it older.
void AcceptanceModel::adapt(const Evidence& evidence, std::size_t i, bool is_accepted) {
  const auto learned = [is_accepted](auto cell, std::uint16_t limit) {
    const double share = squash(stretched(cell));
    const auto count = static_cast<std::uint16_t>(std::min(cell.count + 1, int{limit}));
    return make_cell(share + ((is_accepted ? 1 : 0) - share) / (cell.count + 1), count);
  };
  if (i < Evidence::kFirstName) {
    Cell& cell = contexts_[evidence.cells[i]];
    cell = learned(cell, kMostSeen);
    return;
  }
  NameCell& cell = names_[evidence.cells[i]];
  const std::uint16_t tag = evidence.tags[i - Evidence::kFirstName];
  if (cell.tag != tag) {
    if (cell.count >= kLeastProtected) {
      --cell.count;
      return;
    }
    cell = {0, kFirstNamed, tag};
  }
  const Cell updated = learned(cell, kMostNamed);
  cell = {updated.stretched, updated.count, tag};
}

}  // namespace agentspec
