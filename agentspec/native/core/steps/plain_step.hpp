// An estimate of the seconds that decode steps would take without drafts, learned from the decode steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/steps/step_saving.hpp"

namespace agentspec {

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

}  // namespace agentspec
