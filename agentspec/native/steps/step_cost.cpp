#include "steps/step_cost.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace agentspec {
namespace {

constexpr int kRateWindow = 64;  // steps: the token rate fades over a few of these windows
constexpr double kStairWidth =
    0.25;                         // of a step without prompts: deviation of the stair's first cost, around 0
constexpr double kNever = 1e300;  // weight of "no cost" that no step outweighs
constexpr double kLeastEvidence = 0.2;  // for a known cost
constexpr double kLeastWeight = 0.01;   // weight of the prior "no cost" for requests and prompt tokens
constexpr double kMostTypical = 1.5;    // seconds of an early step, at most, by what the others let expect
constexpr double kOutlier = 3;          // limit of a change, in deviations; larger changes are clipped
constexpr double kLeastShare = 0.02;    // of a step's seconds: least deviation, and least time of decoding
constexpr double kShortestS = 1e-9;     // no step is shorter, unless the clock was set,
constexpr double kLongestS = 3600;      // or longer

}  // namespace

double StepCost::price() const {
  if (num_steps_ == 0) return kFirstPrice;
  return std::min(1.0, std::max(0.0, slopes_[kDrafted] / token_s()));
}

double StepCost::stair() const { return num_steps_ == 0 ? 0 : std::max(0.0, slopes_[kStair]) / token_s(); }

// Of decoding only: the cost of prompts does not depend on drafts.
double StepCost::token_s() const {
  if (num_steps_ == 0) return 0;
  const double prompts = std::max(0.0, slopes_[kPrompt]) * mean_prompt_;
  return std::max(mean_s_ - prompts, kLeastShare * mean_s_) / mean_tokens_;
}

std::optional<double> StepCost::drafts_s(std::uint32_t num_drafted) const {
  if (evidence_ < kLeastEvidence) return std::nullopt;
  if (num_drafted == 0) return 0;
  return std::max(0.0, slopes_[kStair]) + std::max(0.0, slopes_[kDrafted]) * num_drafted;
}

void StepCost::observe(double seconds, std::uint32_t num_requests, std::uint32_t num_drafted,
                       std::uint32_t num_tokens, std::uint32_t num_prompt_tokens) {
  const bool is_plausible = kShortestS < seconds && seconds < kLongestS;  // comparisons with NaN are false
  if (num_requests == 0 || num_tokens == 0 || !is_plausible) return;
  Causes work;
  work[kPrompt] = num_prompt_tokens;
  work[kRequests] = num_requests;
  work[kStair] = has_stair_ && num_drafted > 0 && num_prompt_tokens == 0 ? 1 : 0;
  work[kDrafted] = num_drafted;
  const Step step{seconds, work, static_cast<double>(num_tokens)};
  if (num_early_ == kFew) return take(step, false);
  StepCost again(has_stair_);
  again.early_ = early_;
  again.num_early_ = num_early_;
  again.early_[again.num_early_++] = step;
  for (std::size_t i = 0; i < again.num_early_; ++i)
    if (again.is_typical(again.early_[i])) again.take(again.early_[i], true);
  *this = again;
}

/// False for an early step that took much longer than the others let expect: of a step with twice the rows at
/// most twice the time. Deviations are not known yet, and the first steps of a process are often slow
/// (kernels are compiled, memory is allocated).
bool StepCost::is_typical(const Step& step) const {
  const auto rows = [](const Step& of) { return of.work[kPrompt] + of.work[kRequests] + of.work[kDrafted]; };
  std::array<double, kFew> expected;
  for (std::size_t i = 0; i < num_early_; ++i)
    expected[i] = early_[i].seconds * std::max(1.0, rows(step) / rows(early_[i]));
  const auto median = expected.begin() + (num_early_ - 1) / 2;
  std::nth_element(expected.begin(), median, expected.begin() + num_early_);
  return step.seconds <= kMostTypical * *median;
}

void StepCost::take(const Step& step, bool is_early) {
  auto [seconds, work, num_tokens] = step;
  num_steps_ = std::min(num_steps_ + 1, kWindow);
  const double weight = 1.0 / num_steps_;
  if (num_steps_ > 1) {
    Causes change;
    for (std::size_t i = 0; i < kNumCauses; ++i) change[i] = work[i] - last_[i];
    const double expected = std::inner_product(change.begin(), change.end(), slopes_.begin(), 0.0);
    const double trust = mean_s_ / std::max({mean_s_, last_s_, last_s_ + expected});
    const double s = within_reason(seconds - last_s_, expected, weight, trust, is_early);
    fade(weight, change, s, trust);
    seconds = last_s_ + s;
  }
  last_ = work;
  last_s_ = seconds;
  const double rate_weight = std::max(weight, 1.0 / kRateWindow);
  mean_s_ += rate_weight * (seconds - mean_s_);
  mean_tokens_ += rate_weight * (num_tokens - mean_tokens_);
  mean_prompt_ += rate_weight * (work[kPrompt] - mean_prompt_);
  fit();
}

/// Returns the change of seconds, clipped towards the fit if it is an outlier.
double StepCost::within_reason(double change, double expected, double weight, double trust, bool is_early) {
  const double off = trust * (change - expected);
  const double limit = kOutlier * std::max(deviation_, kLeastShare * mean_s_);
  deviation_ += weight * (std::min(std::abs(off), kOutlier * limit) - deviation_);
  if (is_early) return change;
  const double clipped = expected + std::min(limit, std::max(-limit, off)) / trust;
  return std::max(clipped, kLeastShare * mean_s_ - last_s_);  // the step's seconds stay positive
}

void StepCost::fade(double weight, const Causes& change, double s, double trust) {
  const double keep = 1 - weight;
  const double add = keep * weight * trust * trust;
  for (std::size_t i = 0; i < kNumCauses; ++i) {
    for (std::size_t j = 0; j < kNumCauses; ++j)
      products_[i][j] = keep * products_[i][j] + add * change[i] * change[j];
    with_s_[i] = keep * with_s_[i] + add * change[i] * s;
  }
}

// The first costs are Gaussian priors. Their weight is the noise of a step relative to the prior's width.
// That of the first price is as wide as the price is high. A cost that would fall with the first draft token
// has no stair.
void StepCost::fit() {
  const double mean_token_s = token_s();
  const double noise_s = std::max(deviation_, kLeastShare * mean_s_);
  const auto weight_of = [&](double width_s) {
    return (noise_s / width_s) * (noise_s / width_s) / num_steps_;
  };
  const double first_s = kFirstPrice * mean_token_s;
  Causes weights{kLeastWeight, kLeastWeight, weight_of(kStairWidth * mean_token_s * mean_tokens_),
                 weight_of(first_s)};
  Fit fitted = solved(weights, first_s);
  if (fitted.slopes[kStair] < 0) {
    weights[kStair] = kNever;
    fitted = solved(weights, first_s);
  }
  if (!std::isfinite(std::accumulate(fitted.slopes.begin(), fitted.slopes.end(), 0.0))) return;
  evidence_ = fitted.evidence;
  slopes_ = fitted.slopes;
}

// Eliminates one cause after the other, the draft tokens last. The weights keep every divisor positive,
// except in millions of requests or prompt tokens, where rounding may lose them: then a slope is not finite.
StepCost::Fit StepCost::solved(const Causes& weights, double first_s) const {
  auto left = products_;
  Causes right = with_s_;
  right[kDrafted] += weights[kDrafted] * first_s;
  Fit fitted;
  for (std::size_t i = 0; i < kNumCauses; ++i) {
    if (i == kStair)  // with or without a stair, the seconds of all draft tokens are known as well
      fitted.evidence = left[kDrafted][kDrafted] / (left[kDrafted][kDrafted] + weights[kDrafted]);
    left[i][i] += weights[i];
    for (std::size_t j = i + 1; j < kNumCauses; ++j) {
      const double share = left[j][i] / left[i][i];
      for (std::size_t k = i; k < kNumCauses; ++k) left[j][k] -= share * left[i][k];
      right[j] -= share * right[i];
    }
  }
  for (std::size_t i = kNumCauses; i-- > 0;) {
    double rest = right[i];
    for (std::size_t k = i + 1; k < kNumCauses; ++k) rest -= left[i][k] * fitted.slopes[k];
    fitted.slopes[i] = rest / left[i][i];
  }
  return fitted;
}

}  // namespace agentspec
