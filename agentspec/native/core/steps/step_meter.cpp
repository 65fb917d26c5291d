#include "core/steps/step_meter.hpp"

#include <algorithm>

namespace agentspec {

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
