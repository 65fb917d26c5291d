// The time of decode steps: the price of a draft token, and the time saved, are learned from it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/steps/plain_step.hpp"
#include "core/steps/step_cost.hpp"
#include "core/steps/step_saving.hpp"

namespace agentspec {

/// Measures the steps of one engine. Has no clock: times are seconds on any clock that never goes back. Not
/// thread-safe.
class StepMeter {
 public:
  /// `price` is the operator's; none: learn it from the steps.
  explicit StepMeter(std::optional<double> price) : price_(price) {}

  /// The present least chance of acceptance for a draft token.
  double price() const { return price_ ? *price_ : cost_.price(); }
  /// Slots that all steps verified, padding included.
  std::uint64_t num_slots() const { return num_slots_; }

  /// Begins a step with no other before it: the time until now belongs to no request.
  void idle(double now_s) {
    end_s_ = now_s;
    drafting_s_ = 0;
  }
  /// Takes a step. Returns the time that its drafts saved; none if no steps without drafts tell the time.
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
