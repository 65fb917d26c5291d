#include "core/steps/step_cost.hpp"

#include <algorithm>
#include <cmath>

namespace agentspec {
namespace {

constexpr int kRateWindow = 64;         // steps: the token rate fades over a few of these windows
constexpr double kTrust = 16;           // in the first price: 1 / the variance of real prices around it
constexpr double kLeastEvidence = 0.2;  // for a known cost
constexpr double kLeastWeight = 0.01;   // weight of the prior "no cost" for requests and prompt tokens
constexpr int kFew = 8;                 // steps before any step counts as an outlier
constexpr double kOutlier = 3;          // limit of a change, in deviations; larger changes are clipped
constexpr double kLeastShare = 0.02;    // of a step's seconds: least deviation, and least time of decoding
constexpr double kShortestS = 1e-9;     // no step is shorter, unless the clock was set,
constexpr double kLongestS = 3600;      // or longer

}  // namespace

double StepCost::price() const {
  if (num_steps_ == 0) return kFirstPrice;
  return std::min(1.0, std::max(0.0, slopes_.per_draft / seconds_per_token()));
}

std::optional<double> StepCost::draft_token_s() const {
  if (evidence_ < kLeastEvidence) return std::nullopt;
  return std::max(0.0, slopes_.per_draft);
}

void StepCost::observe(double seconds, std::uint32_t num_requests, std::uint32_t num_drafted,
                       std::uint32_t num_tokens, std::uint32_t num_prompt_tokens) {
  const bool is_plausible = kShortestS < seconds && seconds < kLongestS;  // comparisons with NaN are false
  if (num_requests == 0 || num_tokens == 0 || !is_plausible) return;
  const Work work{static_cast<double>(num_drafted), static_cast<double>(num_requests),
                  static_cast<double>(num_prompt_tokens)};
  num_steps_ = std::min(num_steps_ + 1, kWindow);
  const double weight = 1.0 / num_steps_;
  if (num_steps_ > 1) {
    const Work change{work.drafted - last_.drafted, work.requests - last_.requests,
                      work.prompt - last_.prompt};
    const double s = within_reason(seconds - last_s_, change, weight);
    fade(weight, change, s);
    seconds = last_s_ + s;
  }
  last_ = work;
  last_s_ = seconds;
  const double rate_weight = std::max(weight, 1.0 / kRateWindow);
  mean_s_ += rate_weight * (seconds - mean_s_);
  mean_tokens_ += rate_weight * (num_tokens - mean_tokens_);
  mean_prompt_ += rate_weight * (work.prompt - mean_prompt_);
  fit();
}

// Of decoding only: the cost of prompts does not depend on drafts.
double StepCost::seconds_per_token() const {
  const double prompts = std::max(0.0, slopes_.per_prompt) * mean_prompt_;
  return std::max(mean_s_ - prompts, kLeastShare * mean_s_) / mean_tokens_;
}

/// Returns the change of seconds, clipped towards the fit if it is an outlier.
double StepCost::within_reason(double change, const Work& work, double weight) {
  const double expected = slopes_.per_draft * work.drafted + slopes_.per_request * work.requests +
                          slopes_.per_prompt * work.prompt;
  const double off = change - expected;
  const double limit = kOutlier * std::max(deviation_, kLeastShare * mean_s_);
  deviation_ += weight * (std::min(std::abs(off), kOutlier * limit) - deviation_);
  if (num_steps_ <= kFew) return change;
  const double clipped = expected + std::min(limit, std::max(-limit, off));
  return std::max(clipped, kLeastShare * mean_s_ - last_s_);  // the step's seconds stay positive
}

void StepCost::fade(double weight, const Work& work, double s) {
  const auto& [d, r, p] = work;
  const double keep = 1 - weight;
  const double add = keep * weight;
  Products& mean = products_;
  mean.dd = keep * mean.dd + add * d * d;
  mean.dr = keep * mean.dr + add * d * r;
  mean.dp = keep * mean.dp + add * d * p;
  mean.ds = keep * mean.ds + add * d * s;
  mean.rr = keep * mean.rr + add * r * r;
  mean.rp = keep * mean.rp + add * r * p;
  mean.rs = keep * mean.rs + add * r * s;
  mean.pp = keep * mean.pp + add * p * p;
  mean.ps = keep * mean.ps + add * p * s;
}

// Solves the least squares: eliminates prompt tokens, then requests. The weights keep every divisor positive,
// except in millions of requests or prompt tokens, where rounding may lose them: the last fit then stays.
// The first price is a Gaussian prior. Its weight is the noise of a step relative to the prior's width.
void StepCost::fit() {
  auto [dd, dr, dp, ds, rr, rp, rs, pp, ps] = products_;
  pp += kLeastWeight;
  dr -= dp * rp / pp;
  rr += kLeastWeight - rp * rp / pp;
  rs -= rp * ps / pp;
  const double first = kFirstPrice * seconds_per_token();
  const double noise = std::max(deviation_, kLeastShare * mean_s_) / first;
  const double weight = kTrust * (noise * noise) / num_steps_;
  dd -= dp * dp / pp + dr * dr / rr;
  const double evidence = dd / (dd + weight);
  dd += weight;
  ds += weight * first - dp * ps / pp - dr * rs / rr;
  Slopes fitted;
  fitted.per_draft = ds / dd;
  fitted.per_request = (rs - dr * fitted.per_draft) / rr;
  fitted.per_prompt = (ps - dp * fitted.per_draft - rp * fitted.per_request) / pp;
  if (!std::isfinite(fitted.per_draft + fitted.per_request + fitted.per_prompt)) return;
  evidence_ = evidence;
  slopes_ = fitted;
}

}  // namespace agentspec
