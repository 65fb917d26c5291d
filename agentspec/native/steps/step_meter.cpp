#include "steps/step_meter.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

namespace agentspec {
namespace {

constexpr int kWindow = 64;               // steps of one size, over which the mean fades
constexpr std::int64_t kLifetime = 2000;  // steps, after which the cost of an unseen size counts as unknown
constexpr int kFewPlain = 4;              // steps without drafts before their mean counts
constexpr int kFewDrafted = 8;            // the same with drafts, for which the cost without is an estimate
constexpr double kDelayed = 10;           // slower than this multiple of the expected time: delayed by others
constexpr double kLeastPlainShare = 0.02;  // of a step's seconds: least cost without drafts

/// Returns the least number of requests of the same size: each up to 8, then four sizes per octave.
std::uint32_t size_of(std::uint32_t num_requests) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(num_requests)) - 3);
  return num_requests >> shift << shift;
}

}  // namespace

void PlainStep::Mean::add(double step_s, std::uint32_t step_requests, std::int64_t step) {
  if (num_steps >= kFewDrafted) step_s = std::min(step_s, kDelayed * seconds);
  num_steps = std::min(num_steps + 1, kWindow);
  seconds += (step_s - seconds) / num_steps;
  num_requests += (step_requests - num_requests) / num_steps;
  last_step = step;
}

std::optional<double> PlainStep::seconds(std::uint32_t num_requests) const {
  const auto place = sizes_.lower_bound(size_of(num_requests));
  auto next = place;
  if (place != sizes_.end() && place->first == size_of(num_requests)) {
    if (const Mean* mean = known(place->second)) return mean->seconds;
    ++next;
  }
  const auto is_known = [this](const auto& size) { return known(size.second) != nullptr; };
  const auto above = std::find_if(next, sizes_.end(), is_known);
  const auto below = std::find_if(std::reverse_iterator(place), sizes_.rend(), is_known);
  if (above == sizes_.end() || below == sizes_.rend()) return std::nullopt;
  const Mean& less = *known(below->second);
  const Mean& more = *known(above->second);
  const double share = (num_requests - less.num_requests) / (more.num_requests - less.num_requests);
  return less.seconds + share * (more.seconds - less.seconds);
}

std::optional<StepSaving> PlainStep::observe(double seconds, double drafting_s, std::uint32_t num_requests,
                                             std::uint32_t num_drafted, std::uint32_t num_prompt_tokens,
                                             std::optional<double> drafts_s) {
  const bool is_plausible =  // comparisons with NaN are false
      0 <= drafting_s && drafting_s < seconds && seconds < std::numeric_limits<double>::infinity();
  if (num_requests == 0 || !is_plausible) return std::nullopt;
  ++num_steps_;
  const std::optional<double> plain_s = this->seconds(num_requests);
  if (num_drafted == 0) {
    if (num_prompt_tokens == 0)
      learn(sizes_[size_of(num_requests)].plain, seconds - drafting_s, num_requests);
    return StepSaving{seconds, seconds - drafting_s, 0};
  }
  const double extra_s = drafting_s + drafts_s.value_or(0);
  if (estimates_ && drafts_s && num_prompt_tokens == 0 && num_requests > 1)
    learn(sizes_[size_of(num_requests)].drafted, std::max(seconds - extra_s, kLeastPlainShare * seconds),
          num_requests);
  if (!plain_s || (!drafts_s && num_prompt_tokens > 0)) return std::nullopt;
  if (num_prompt_tokens > 0)  // they are read once, with drafts or without
    return StepSaving{seconds, std::max(0.0, seconds - extra_s) - *plain_s, *plain_s};
  const double held_up_s = std::max(0.0, seconds - kDelayed * (*plain_s + extra_s));
  return StepSaving{seconds, held_up_s, *plain_s};
}

void PlainStep::learn(Mean& mean, double seconds, std::uint32_t num_requests) {
  if (is_old(mean)) mean.num_steps = 0;
  mean.add(seconds, num_requests, num_steps_);
}

const PlainStep::Mean* PlainStep::known(const Means& means) const {
  const auto is_known = [this](const Mean& mean, int few) { return mean.num_steps >= few && !is_old(mean); };
  if (is_known(means.plain, kFewPlain)) return &means.plain;
  return is_known(means.drafted, kFewDrafted) ? &means.drafted : nullptr;
}

bool PlainStep::is_old(const Mean& mean) const { return num_steps_ - mean.last_step > kLifetime; }

std::optional<StepSaving> StepMeter::observe(double begin_s, double end_s, std::uint32_t num_scheduled,
                                             std::uint32_t num_decoding, std::uint32_t num_slots,
                                             std::uint32_t num_new) {
  num_slots_ += num_slots;
  const double seconds = begin_s - end_s_;
  const double drafting_s = drafting_s_;
  end_s_ = end_s;
  drafting_s_ = end_s - begin_s;
  const std::int64_t num_others = std::int64_t{num_scheduled} - num_decoding - num_slots;
  const auto num_prompt_tokens = static_cast<std::uint32_t>(std::max<std::int64_t>(0, num_others));
  const auto saving = plain_.observe(seconds + drafting_s, drafting_s, num_decoding, num_slots,
                                     num_prompt_tokens, cost_.drafts_s(num_slots));
  cost_.observe(seconds, num_decoding, num_slots, num_new, num_prompt_tokens);
  return saving;
}

}  // namespace agentspec
