#include "core/live_row.hpp"

#include <algorithm>

namespace agentspec {

std::span<const std::int32_t> LiveRow::take(std::span<const std::int32_t> text, std::size_t num_sampled,
                                            std::size_t num_verified, double now_s) {
  const auto sampled = text.last(num_sampled);
  const auto stop = std::find_first_of(sampled.begin(), sampled.end(), stops_.begin(), stops_.end());
  const bool is_stopped = stop != sampled.end();
  std::size_t end = text.size();
  if (is_stopped) end -= static_cast<std::size_t>(sampled.end() - stop) - 1;
  end = std::min(end, most_tokens_);
  room_ = is_stopped || end == most_tokens_ ? 0 : most_tokens_ - end - 1;
  const auto added = text.first(end).subspan(std::min(num_known_, end));
  if (!added.empty()) count(added.size(), num_verified, now_s);
  num_known_ = end;
  return added;
}

std::size_t LiveRow::accept_draft(std::size_t num_tokens, SourceId source) {
  source_ = room_ == 0 ? kNoSource : source;
  return std::min(num_tokens, room_);
}

// A step without a draft gives one token, and the first of all is no decode step's.
void LiveRow::count(std::size_t num_added, std::size_t num_verified, double now_s) {
  const auto num_new = static_cast<std::int64_t>(num_added);
  counts_.num_output_tokens += num_new;
  if (has_output_) {
    ++counts_.num_steps;
    counts_.decode_s += now_s - last_s_;
  } else {
    counts_.num_steps += num_new - 1;
  }
  if (has_output_ && num_verified > 0 && source_ != kNoSource) {
    ++counts_.num_drafts;
    counts_.drafted[source_] += static_cast<std::int64_t>(num_verified);
    counts_.accepted[source_] += num_new - 1;
  }
  has_output_ = true;
  last_s_ = now_s;
}

}  // namespace agentspec
