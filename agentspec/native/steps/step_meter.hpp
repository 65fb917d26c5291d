// The time of decode steps: the price of a draft token, and the time saved, are learned from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "steps/step_cost.hpp"

namespace agentspec {

/// One step as each of its decoding requests saw it, and its estimate without drafts.
struct StepSaving {
  double measured_s = 0;  // that the step took, with its drafts
  // A request that gained n tokens would have waited fixed_s + n * per_token_s.
  double fixed_s = 0;
  double per_token_s = 0;

  /// Returns the estimated seconds without drafts for a request that gained `num_tokens` tokens.
  double plain_s(std::size_t num_tokens) const {
    return std::max(0.0, fixed_s + static_cast<double>(num_tokens) * per_token_s);
  }
};

/// The cost of a step without drafts, by the number of requests that decode in it. Drafting saves the
/// difference: each token of a step at the cost of a plain step, less the seconds of the step (docs/ui.md).
/// Has no clock, no engine and no request.
///
/// Steps without drafts are measured. If several requests decode, few steps have no drafts. With `estimates`
/// the cost is then that of steps with drafts, less the cost of their draft tokens. This is wrong for an
/// engine that prepares and samples steps without drafts in another way, as vLLM does. The cost of a single
/// request's step is either measured or unknown: a pass over one token may run other kernels than a pass with
/// drafts. Between two known sizes the cost is interpolated. Beyond them it is unknown.
///
/// Stores at most 123 sizes. Not thread-safe.
class PlainStep {
 public:
  explicit PlainStep(bool estimates = true) : estimates_(estimates) {}

  /// Returns the seconds of a step without drafts and prompts; none if unknown. O(sizes).
  std::optional<double> seconds(std::uint32_t num_requests) const;
  /// Takes one decode step and returns its saving by the costs known before; none if they do not suffice.
  /// `seconds` have passed from the end of the last step to the end of this one, of them `drafting_s` on
  /// drafting, not on the model. `num_requests` requests decoded, `num_drafted` draft tokens were verified
  /// and `num_prompt_tokens` prompt tokens processed. `drafts_s`: current cost of these draft tokens.
  std::optional<StepSaving> observe(double seconds, double drafting_s, std::uint32_t num_requests,
                                    std::uint32_t num_drafted, std::uint32_t num_prompt_tokens,
                                    std::optional<double> drafts_s);

 private:
  /// A fading mean of the seconds and of the number of requests of similar steps.
  struct Mean {
    int num_steps = 0;  // up to a limit, beyond which older ones fade
    std::int64_t last_step = 0;
    double seconds = 0;
    double num_requests = 0;

    void add(double step_s, std::uint32_t step_requests, std::int64_t step);
  };
  struct Means {
    Mean plain;    // of steps without drafts
    Mean drafted;  // of those with drafts, less the cost of these
  };

  void learn(Mean& mean, double seconds, std::uint32_t num_requests);
  const Mean* known(const Means& means) const;
  bool is_old(const Mean& mean) const;

  bool estimates_;
  std::int64_t num_steps_ = 0;
  std::map<std::uint32_t, Means> sizes_;  // by the least number of requests of a size
};

/// Measures the steps of one engine. Has no clock: times are seconds of any monotonic clock. Not
/// thread-safe.
class StepMeter {
 public:
  /// `price` is the operator's; none: learn it from the steps.
  explicit StepMeter(std::optional<double> price) : price_(price) {}

  /// The least probability of acceptance with which a token is drafted now.
  double price() const { return price_ ? *price_ : cost_.price(); }
  /// Slots that all steps verified, padding included.
  std::uint64_t num_slots() const { return num_slots_; }

  /// Begins a step with no other before it: the time until now belongs to no request.
  void idle(double now_s) {
    end_s_ = now_s;
    drafting_s_ = 0;
  }
  /// Takes a step. Returns the time that its drafts saved; none before any step without drafts was measured.
  /// Drafting for the next step began at `begin_s` and ended at `end_s`; the forward pass is before it. The
  /// step processed `num_scheduled` tokens. `num_decoding` rows were decoding before it. It verified
  /// `num_slots` slots for them, padding included, and gave them `num_new` tokens.
  std::optional<StepSaving> observe(double begin_s, double end_s, std::uint32_t num_scheduled,
                                    std::uint32_t num_decoding, std::uint32_t num_slots,
                                    std::uint32_t num_new);

 private:
  StepCost cost_;
  PlainStep plain_{false};
  std::optional<double> price_;
  std::uint64_t num_slots_ = 0;
  double end_s_ = 0;       // of the last drafting; 0: no step yet
  double drafting_s_ = 0;  // duration of the last drafting, which drafted for the next step
};

}  // namespace agentspec
