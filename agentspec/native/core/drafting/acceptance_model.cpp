#include "core/drafting/acceptance_model.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/bytes.hpp"
#include "core/drafting/acceptance_prior.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr float kFirstRate = 0.03f;  // of learning; it falls with the outcomes that a set of weights has seen
constexpr float kLeastRate = 0.003f;
constexpr float kHalfRateAt = 200;
constexpr float kCalibrationRate = 0.01f;
constexpr float kFirstWeight = 0.35f;
constexpr float kFirstWeightOfWider = 0.15f;  // of the trees that hold other stages' outputs
constexpr int kUntrainedCount = 6;            // weight of a cell's first estimate, in tokens
constexpr int kPriorCount = 20;               // the same with the prior
constexpr float kPriorLearned = 200;          // outcomes that the weights of the prior are worth
constexpr float kMostLearned = 1e6f;          // outcomes that are counted
constexpr float kMostWeight = 1e6f;           // beyond the reach of learning

}  // namespace

auto& AcceptanceModel::weights_of(auto& model, std::size_t set) {
  return set < model.by_trees_.size() ? model.by_trees_[set] : model.by_kind_[set - model.by_trees_.size()];
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
          contexts_[cell++] = ContextCell::of(p, kUntrainedCount);
        }
      }
    }
  }
  std::fill(contexts_.begin() + Evidence::kNumContextCells, contexts_.end(),
            ContextCell::of(0.5, kUntrainedCount));
  hashed_.fill({0, HashedCell::kFirstSeen, 0});
  by_kind_.fill({});
  Weights first{};
  std::fill_n(first.of.begin(), Evidence::kNumInputs, kFirstWeight);
  std::fill_n(first.of.begin() + kFirstWider, Evidence::kNumContexts - kFirstWider, kFirstWeightOfWider);
  by_trees_.fill(first);
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
    static_assert(AcceptancePrior::kNumContexts == std::tuple_size_v<decltype(contexts_)>);
    static_assert(AcceptancePrior::kNumWeights ==
                  (Evidence::kNumTreeSets + Evidence::kNumKinds) * (kBias + 1));
    static_assert(AcceptancePrior::kNumCalibration == kNumDepths * kNumSteps);
    for (std::size_t i = 0; i < made.contexts_.size(); ++i) {
      made.contexts_[i] =
          ContextCell::of(squash(prior.contexts[i] / AcceptancePrior::kContextUnits), kPriorCount);
    }
    const std::int16_t* weight = prior.weights.data();
    for (const std::span<Weights> sets :
         {std::span<Weights>(made.by_trees_), std::span<Weights>(made.by_kind_)}) {
      for (Weights& weights : sets) {
        for (std::size_t i = 0; i <= kBias; ++i) weights.of[i] = *weight++ / AcceptancePrior::kWeightUnits;
        weights.num_learned = kPriorLearned;
      }
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
  if (state.size() != kStateBytes) {
    throw ConfigError("the state of a model has " + std::to_string(kStateBytes) + " bytes, not " +
                      std::to_string(state.size()));
  }
  ByteReader reader(state, "the state of a model");
  for (ContextCell& cell : contexts_) cell = ContextCell::decoded(reader.get<std::uint16_t>());
  for (HashedCell& cell : hashed_) cell = HashedCell::decoded(reader.get<std::uint16_t>());
  for (std::size_t set = 0; set < kNumSets; ++set) {
    Weights& weights = weights_of(*this, set);
    weights = {};
    for (float& weight : std::span(weights.of).first<kBias + 1>()) weight = reader.get_float();
    weights.num_learned = reader.get_float();
  }
  for (auto& steps : calibration_)
    for (float& p : steps) p = reader.get_float();
  if (!is_sound()) throw ConfigError("the state of a model holds a number that no model learns");
}

std::vector<std::byte> AcceptanceModel::state() const {
  ByteWriter writer(kStateBytes);
  for (const ContextCell& cell : contexts_) writer.put(cell.encoded());
  for (const HashedCell& cell : hashed_) writer.put(cell.encoded());
  for (std::size_t set = 0; set < kNumSets; ++set) {
    const Weights& weights = weights_of(*this, set);
    for (const float weight : std::span(weights.of).first<kBias + 1>()) writer.put(weight);
    writer.put(weights.num_learned);
  }
  for (const auto& steps : calibration_)
    for (const float p : steps) writer.put(p);
  return writer.take();
}

// Comparisons with NaN are false.
bool AcceptanceModel::is_sound() const {
  const auto is_weight = [](float weight) { return std::abs(weight) <= kMostWeight; };
  const auto are_weights = [&](const Weights& weights) {
    return std::ranges::all_of(weights.of, is_weight) && weights.num_learned >= 0 &&
           weights.num_learned <= kMostLearned;
  };
  return std::ranges::all_of(by_trees_, are_weights) && std::ranges::all_of(by_kind_, are_weights) &&
         std::ranges::all_of(calibration_, [](const auto& steps) {
           return std::ranges::all_of(steps, [](float p) { return p >= 0 && p <= 1; });
         });
}

AcceptanceModel::Inputs AcceptanceModel::inputs(const Evidence& evidence) const {
  Inputs inputs{};
  for (std::size_t i = 0; i < Evidence::kFirstHashed; ++i) {
    if (evidence.cells[i] != Evidence::kNothing) inputs[i] = contexts_[evidence.cells[i]].value();
  }
  for (std::size_t i = 0; i < Evidence::kNumHashed; ++i) {
    const std::uint16_t place = evidence.cells[Evidence::kFirstHashed + i];
    if (place == Evidence::kNothing) continue;
    HashedCell cell = hashed_[place];
    if (cell.tag != evidence.tags[i]) cell.stretched = 0;
    inputs[Evidence::kFirstHashed + i] = cell.value();
  }
  inputs[kBias] = 1;
  return inputs;
}

AcceptanceModel::Mixture AcceptanceModel::mix(const Evidence& evidence, const Inputs& inputs) const {
  const auto &trees = by_trees_[evidence.trees].of, &kind = by_kind_[evidence.kind()].of;
  std::array<float, 4> sums{};  // one for each lane of a vector
  for (std::size_t i = 0; i < kNumWeights; i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane)
      sums[lane] += (trees[i + lane] + kind[i + lane]) * inputs[i + lane];
  }
  const float x = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const float place = std::clamp(2 * x + 16, 0.0f, 31.999f);
  const auto step = static_cast<std::size_t>(place);
  return {x, 1 / (1 + std::exp(-x)), step, place - static_cast<float>(step)};
}

double AcceptanceModel::estimate(const Evidence& evidence) const {
  const Mixture mixture = mix(evidence, inputs(evidence));
  const auto& steps = calibration_[std::min<std::size_t>(evidence.depth, kNumDepths - 1)];
  const float calibrated =
      steps[mixture.step] * (1 - mixture.fraction) + steps[mixture.step + 1] * mixture.fraction;
  return std::clamp((mixture.p + calibrated) / 2.0, kLeastProb, 1 - kLeastProb);
}

void AcceptanceModel::learn(const Evidence& evidence, bool is_accepted) {
  const Inputs inputs = this->inputs(evidence);
  const Mixture mixture = mix(evidence, inputs);
  const float truth = is_accepted ? 1 : 0;
  for (Weights* weights : {&by_trees_[evidence.trees], &by_kind_[evidence.kind()]}) {
    const float rate = std::max(kLeastRate, kFirstRate / (1 + weights->num_learned / kHalfRateAt));
    const float change = rate * (truth - mixture.p);
    for (std::size_t i = 0; i < kNumWeights; ++i) weights->of[i] += change * inputs[i];
    weights->num_learned = std::min(weights->num_learned + 1, kMostLearned);
  }
  adapt(evidence, is_accepted);
  auto& steps = calibration_[std::min<std::size_t>(evidence.depth, kNumDepths - 1)];
  steps[mixture.step] += kCalibrationRate * (1 - mixture.fraction) * (truth - steps[mixture.step]);
  steps[mixture.step + 1] += kCalibrationRate * mixture.fraction * (truth - steps[mixture.step + 1]);
}

void AcceptanceModel::adapt(const Evidence& evidence, bool is_accepted) {
  for (std::size_t i = 0; i < Evidence::kFirstHashed; ++i) {
    if (evidence.cells[i] == Evidence::kNothing) continue;
    ContextCell& cell = contexts_[evidence.cells[i]];
    cell = cell.learned(is_accepted);
  }
  for (std::size_t i = 0; i < Evidence::kNumHashed; ++i) {
    const std::uint16_t place = evidence.cells[Evidence::kFirstHashed + i];
    if (place != Evidence::kNothing) hashed_[place] = hashed_[place].learned(evidence.tags[i], is_accepted);
  }
}

}  // namespace agentspec
