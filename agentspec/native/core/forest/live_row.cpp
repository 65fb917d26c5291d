#include "core/forest/live_row.hpp"

#include <algorithm>

namespace agentspec {

LiveRow::Gain LiveRow::gain(std::span<const std::int32_t> text, std::size_t num_sampled) const {
  const auto sampled = text.last(num_sampled);
  const auto stop = std::find_first_of(sampled.begin(), sampled.end(), stops_.begin(), stops_.end());
  const bool is_stopped = stop != sampled.end();
  std::size_t end = text.size();
  if (is_stopped) end -= static_cast<std::size_t>(sampled.end() - stop) - 1;
  end = std::min(end, most_tokens_);
  Gain gain;
  gain.tokens = text.first(end).subspan(std::min(num_known_, end));
  gain.num_new = end - std::min(num_counted_, end);
  gain.room = is_stopped || end == most_tokens_ ? 0 : most_tokens_ - end - 1;
  return gain;
}

void LiveRow::complete_step(const Gain& gain, std::size_t num_verified, std::size_t num_drafted,
                            SourceId source, double now_s) {
  if (gain.num_new > 0) count(gain.num_new, num_verified, now_s);
  if (request_) num_known_ += gain.tokens.size();
  num_counted_ += gain.num_new;
  source_ = num_drafted == 0 ? kNoSource : source;
}

// A missed step had no draft and gave one token. The very first token belongs to no decode step.
void LiveRow::count(std::size_t num_new, std::size_t num_verified, double now_s) {
  const auto num_tokens = static_cast<std::int64_t>(num_new);
  counts_.num_output_tokens += num_tokens;
  if (has_output_) {
    ++counts_.num_steps;
    counts_.decode_s += now_s - last_s_;
  } else {
    counts_.num_steps += num_tokens - 1;
  }
  if (has_output_ && num_verified > 0 && source_ != kNoSource) {
    ++counts_.num_drafts;
    counts_.drafted[source_] += static_cast<std::int64_t>(num_verified);
    counts_.accepted[source_] += num_tokens - 1;
  }
  has_output_ = true;
  last_s_ = now_s;
}

}  // namespace agentspec
